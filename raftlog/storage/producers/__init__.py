"""Sequence numbers and epochs per producer id."""
