"""Transactions of a producer: states, fencing and sinks."""
