"""Examples: services whose state is replicated. Each is one file, to be read and copied."""
