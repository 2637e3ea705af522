"""Replication serves leaders and followers, commits records, and exposes committed records.

Purpose: connect the metadata, which names the leaders, with the storage, which keeps the bytes. A
node acts on a partition only by the applied metadata. A record is committed once every in-sync
replica has it durably. Readers see committed records only.

Rules: a `Partition` acknowledges after the high watermark has passed the batch, never before. The
high watermark never falls within a leader epoch. Replicas are created and deleted only by applied
metadata, and never because metadata is missing. A single node is a cluster by the same code.

Must not know: HTTP, JSON, content types.
"""
