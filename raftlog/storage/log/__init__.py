"""One replica's log: open, append, flush, read, truncate and recover."""
