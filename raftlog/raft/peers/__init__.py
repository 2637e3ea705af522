"""Peers of a member: identity, hello, joining, and liveness of connections."""
