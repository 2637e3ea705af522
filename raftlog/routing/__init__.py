"""Routing: any node answers for any partition.

Purpose: find the leader of a partition, do the operation here if this node leads it, or forward it.

Rules: an operation that left this node and has no answer is unknown, never refused. Every forwarded
request has a deadline, every queue a bound.

Must not know: HTTP, or any other protocol of clients.
"""
