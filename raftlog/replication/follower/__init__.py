"""The follower role of a partition: truncation, appends, divergence."""
