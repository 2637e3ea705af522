"""Replication: who leads a partition, what is committed, and what a reader may see.

Purpose: between the metadata that says who leads and the storage that keeps the bytes. A node acts
on a partition only as the applied metadata tells it to; a record is committed once every in-sync
replica has it durably; readers see committed records only.

Rules: a `Partition` acknowledges after the high watermark has passed the batch, never before. The
high watermark never falls within a leader epoch. Replicas are created and deleted only by applied
metadata, and never because metadata is missing. One node is a cluster of one, by the same code.

Must not know: HTTP, JSON, content types.
"""
