"""REST consumer instances: their table, messages and decisions."""
