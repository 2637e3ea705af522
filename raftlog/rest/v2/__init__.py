"""The v2 convention has topics, records and consumer instances."""
