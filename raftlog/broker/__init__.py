"""The broker: the operations that a node offers its clients, without a protocol.

Purpose: produce, fetch, offsets and administration, with their limits and their authorization, for
every listener alike.

Rules: work is per batch, never per record. Outcomes are values or LogError, partition by partition.

Must not know: HTTP, JSON, or the wire format of any client protocol.
"""
