"""Segments of a log, their indexes, and the scan of a file of batches."""
