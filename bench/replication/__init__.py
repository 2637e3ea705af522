"""The figures of replication: `scripts/bench cluster`, three real nodes on this machine.

Every figure is taken from outside, as a user sees the cluster. Every wait has a deadline.
"""
