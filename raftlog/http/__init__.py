"""The HTTP shell: connections, dispatch, routing, bodies, answers, metrics, and the server.

Purpose: carry requests to the handlers of `raftlog.rest` and answers back, and protect the node
from slow, careless or hostile peers.

Rules
- Every failure is an entry of the error table (raftlog.record.errors); no stack trace leaves.
- Every limit is a field of `ServerLimits`, and bounds the memory or time that a peer can take.
- The route table is the only description of the surface: the router and /openapi.json read it.

Must not know: files, segments, Raft, or the meaning of any route but health and the peers' one.

To add an endpoint, see `routing.py`.
"""
