"""Handlers of the v2 convention: topics, records and consumer instances."""
