"""Shards of coordinator partitions: records, replay, and the service that owns all shards."""
