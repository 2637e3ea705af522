"""Kafka's message encoding, compiled from annotated structs.

Purpose: A message is a `msgspec.Struct` with annotated fields. The compiler turns each version of a
message into two straight-line Python functions, an encoder and a decoder. Coordinator records and
the Kafka wire protocol use it.

Rules: Pure, no I/O. A length is checked against the bytes left before memory is allocated. Array
elements count against a limit. Malformed bytes raise only `DecodeError`. A value that the version
cannot hold raises `EncodeError`, so no field is dropped silently.

Must not know: The existing messages, their topics and API keys, or any part of raftlog except
`raftlog.record.types`.
"""
