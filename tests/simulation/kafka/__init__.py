"""Kafka's clients and the shipped listener in the simulated world.

Clients speak to nodes over byte streams (tests/simulation/streams.py) which are split, delayed,
half-closed and cut at any byte. `raftlog.kafka` runs unchanged.
"""
