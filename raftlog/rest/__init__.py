"""The REST handlers serve the v1, v2 and v3 conventions over HTTP.

Purpose: parse a request, call the broker and shape the response. The routes of each part stand
beside its handlers.

Rules: no decision about logs or metadata is made here. Every failure is an entry of the error
table.

Must not know sockets, files, Raft, or which node leads a partition.
"""
