"""Record batches: the one format of the disk, of the network between nodes, and of `/v1`.

Purpose: Kafka's RecordBatch v2 (parse, validate, stamp, compress, encode, decode), the frames that
carry batches over HTTP, the error table, and the types named by every layer.

Rules: plain synchronous code over plain bytes. A broker works per batch and treats records as
opaque; only the codec looks inside. Whatever arrives is refused whole or taken whole, with a
`LogError`. Memory is bounded before it is allocated.

Must not know: files, topics' configuration, HTTP, the event loop, time. Shared with the client, so
the package imports nothing of raftlog. Nothing is imported here: a user of `types` or `errors`
should not pay for the codec (`codec` alone loads aiokafka).
"""
