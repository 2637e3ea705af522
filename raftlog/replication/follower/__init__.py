"""The follower role of a partition truncates, appends and compares logs."""
