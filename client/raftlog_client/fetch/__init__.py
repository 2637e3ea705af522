"""Reads: fetch requests, record buffers, and positions of a consumer."""
