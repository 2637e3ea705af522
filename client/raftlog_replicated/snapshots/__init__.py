"""Snapshots of replicated state, and the topics that keep them."""
