"""One durable log per replica.

Purpose: keep record batches in order on disk, return them unchanged, and after any crash serve
exactly the provably intact records. `manager` owns a node's replicas, `log` is one replica's log.

Rules: decisions (recovery, retention, compaction, producer state, leader epochs) are plain
functions over plain data. I/O goes through `raftlog.world.Disk` only. A failed sync is final.
Damage is reported and kept, never cut away. Nothing counts as durable before its sync returned.

Must not know: topics' names, which node leads, high watermarks' meaning, HTTP. Imports record and
world.
"""
