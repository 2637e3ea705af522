"""Snapshots of the state machine: format, transfer, and their schedule."""
