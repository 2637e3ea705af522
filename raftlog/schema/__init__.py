"""Kafka's message encoding, compiled from annotated structs.

Purpose: a message is a `msgspec.Struct` with annotated fields; each of its versions becomes one
straight-line Python function that encodes and one that decodes. The compiler serves coordinator
records and the Kafka wire protocol.

Rules: pure, no I/O. A length is checked against the bytes left before memory is allocated, array
elements count against a limit, and malformed bytes raise `DecodeError` only. A value that the
version cannot hold raises `EncodeError`: no field is dropped silently.

Must not know: which messages exist, their topics and API keys; anything of raftlog but
`raftlog.record.types`.
"""
