"""REST consumer instances with their messages and decisions."""
