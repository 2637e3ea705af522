"""Writes with batches, their accumulation, and their delivery to leaders."""
