"""The REST handlers: the v1, v2 and v3 conventions over HTTP.

Purpose: parse a request, call the broker, shape the answer. The routes of each part stand beside
its handlers.

Rules: no decision about logs or metadata is taken here. Every failure is an entry of the error
table.

Must not know: sockets, files, Raft, or which node leads a partition.
"""
