"""Open, append, flush, read, truncate and recover one replica's log."""
