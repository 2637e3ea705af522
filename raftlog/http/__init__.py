"""The HTTP shell has connections, dispatch, routing, bodies, responses, metrics and the server.

Purpose: carry requests to the handlers of `raftlog.rest` and responses back, and protect the node
from slow, careless or hostile peers.

Rules
- Every failure is an entry of the error table (raftlog.record.errors). No stack trace leaves.
- Every limit is a field of `ServerLimits`, and bounds the memory or time that a peer can take.
- Only the route table describes the surface. The router and /openapi.json read it.

Must not know files, segments, Raft, or the meaning of any route but health and the peers' route.

To add an endpoint, see `routing.py`.
"""
