"""The gateway: the v2 surface for the logs of all clusters in a catalog, and groups across them.

Purpose: follow the catalog of a home cluster; pass requests about one log to the cluster that holds
it; serve consumer instances whose membership and offsets the home cluster keeps, with records of
any cluster. Any number of gateways run side by side; none holds anything durable.

Rules: clusters are known by their addresses and HTTP alone. A request that may have reached a
cluster is repeated only if that is safe. The catalog decides which logs exist, never a guess.

Must not know: the insides of a node. Of a node's packages the gateway uses the HTTP shell
(raftlog.http), the v2 shapes (raftlog.rest) and the limits that listeners share (raftlog.broker).
"""
