"""The HTTP surface: routes, schemas, limits, metrics, and the server that runs them.

Purpose: give the node's services to anyone who speaks HTTP, as rest.md describes, and stand between
the node and slow, careless or hostile peers.

Rules
- Handlers are thin: read, check, call a service, shape the answer. No decision about logs is here.
- Every failure is an entry of the error table (raftlog.record.errors); no stack trace leaves.
- Every limit is a field of `ServerLimits`; what a peer can make us hold is bounded by one of them.
- Authorisation and quotas have one place: the `guard` that `dispatch.py` asks before a handler.
- The route table is the only description of the surface: the router and /openapi.json read it.

Must not know: files, segments, Raft, other nodes' addresses beyond what the metadata image says.

How to add an endpoint: see `routing.py`.
"""
