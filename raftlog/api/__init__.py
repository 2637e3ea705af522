"""Wire shapes of the node's own interfaces, declared once for node, client, CLI and manager.

Purpose: every message of `/v1`, of the v3 admin convention and of the local cluster manager's
control socket, as msgspec structs: their fields, units and bounds.

Rules: pure. Values only, no I/O and no decisions; imports msgspec and `raftlog.record` only.
Requests forbid unknown fields, so that a misspelt option is an error. Responses ignore unknown
fields, so that an older client reads a newer node; a field that a release adds has a default.

Must not know: how a node answers a request, and how a client routes one.
"""
