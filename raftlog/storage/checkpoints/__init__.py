"""Checkpoints of all logs of a data directory."""
