"""JSON records are parsed from requests into batches, and written from batches into responses."""
