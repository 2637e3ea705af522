"""The `raftlog cluster` commands."""
