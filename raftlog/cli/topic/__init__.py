"""The `raftlog topic` commands."""
