"""Open and aborted transactions of a log, for readers of committed records."""
