"""Identity, hello and joining of peers, and liveness of their connections."""
