"""Transactions of a producer, with states, fencing and sinks."""
