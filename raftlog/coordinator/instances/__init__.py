"""REST consumer instances with their table, messages and decisions."""
