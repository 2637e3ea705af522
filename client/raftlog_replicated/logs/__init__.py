"""Logs of commands: one shared by all replicas, or one per replica."""
