"""Wire shapes of the node's HTTP interfaces, declared once for node, client, CLI and manager.

Purpose: Every message of `/v1`, of the v3 admin convention and of the local cluster manager's
control socket, as msgspec structs with their fields, units and bounds.

Rules: Pure values, no I/O and no decisions. Imports only msgspec and `raftlog.record`. Requests
forbid unknown fields, so a misspelt option is an error. Responses ignore unknown fields, so an
older client reads a newer node. A field that a release adds has a default.

Must not know: How a node serves a request, or how a client routes it.
"""
