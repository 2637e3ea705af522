"""Replication: leaders, followers, committed records, and the end that readers may see.

Purpose: connect the metadata, which names the leaders, with the storage, which keeps the bytes. A
node acts on a partition only by the applied metadata; a record is committed once every in-sync
replica has it durably; readers see committed records only.

Rules: a `Partition` acknowledges after the high watermark has passed the batch, never before. The
high watermark never falls within a leader epoch. Replicas are created and deleted only by applied
metadata, and never because metadata is missing. One node is a cluster of one, by the same code.

Must not know: HTTP, JSON, content types.
"""
