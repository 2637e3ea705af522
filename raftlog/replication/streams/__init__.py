"""Replication streams between a leader and its followers."""
