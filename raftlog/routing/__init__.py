"""Routing: any node serves requests for any partition.

Purpose: find a partition's leader, call the local partition if this node leads, or forward the
call.

Rules: an operation that left this node without an answer has an unknown outcome, never an error
that means "no effect". Every forwarded request has a deadline, every queue a bound.

Must not know: HTTP, or any other protocol of clients.
"""
