"""Snapshots of the state machine, with their format, transfer and schedule."""
