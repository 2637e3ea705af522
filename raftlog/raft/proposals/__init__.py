"""Proposals and linearizable reads, from any node to the leader."""
