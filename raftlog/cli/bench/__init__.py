"""The `raftlog bench` commands."""
