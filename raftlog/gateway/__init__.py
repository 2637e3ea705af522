"""The gateway serves the v2 surface for a catalog's clusters, and groups across logs.

Purpose: follow the catalog of a home cluster, pass requests about one log to its cluster, and serve
consumer instances with records of any cluster. Membership and offsets stay in the home cluster. Any
number of gateways run side by side. None holds anything durable.

Rules: a gateway reaches clusters only by their addresses and HTTP. A request with an unknown
outcome is repeated only if a repeat is safe. The catalog decides which logs exist, never a guess.

Must not know the insides of a node. Of a node's packages the gateway uses the HTTP shell
(raftlog.http), the v2 shapes (raftlog.rest) and the limits shared by listeners (raftlog.broker).
"""
