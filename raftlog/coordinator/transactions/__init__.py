"""Transactions: states, markers, sinks and the verification of partitions."""
