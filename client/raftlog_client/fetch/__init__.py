"""Reads with fetch requests, record buffers, and positions of a consumer."""
