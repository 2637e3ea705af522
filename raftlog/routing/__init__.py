"""Routing lets any node serve requests for any partition.

It finds a partition's leader, and calls the local partition if this node leads, or forwards the
call. An operation that left this node without a response has an unknown outcome, never an error
that means "no effect". Every forwarded request has a deadline, and every queue a bound. The package
knows no HTTP and no other protocol of clients.
"""
