"""Record batches, the format of the disk, the network between nodes, and `/v1`.

Purpose: Kafka's RecordBatch v2 (parse, validate, stamp, compress, encode, decode), the frames that
carry batches over HTTP, the error table, and the types that every layer names.

Rules: plain synchronous code over plain bytes. A broker works per batch and treats records as
opaque. Only the codec reads records. Input is accepted whole or rejected whole with a `LogError`.
Memory is bounded before it is allocated.

Must not know: files, topics' configuration, HTTP, the event loop, time. The client shares this
package, so it imports nothing of raftlog. This module imports nothing, since a user of `types` or
`errors` should not pay for the codec (`codec` alone loads aiokafka).
"""
