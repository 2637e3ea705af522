"""Shards of coordinator partitions, with their records, replay, and service."""
