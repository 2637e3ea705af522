"""Handlers of raftlog's own routes below `/v1`."""
