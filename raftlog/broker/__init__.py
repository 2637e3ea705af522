"""The broker: the operations that a node offers its clients, without a protocol.

Purpose: produce, fetch, offsets and administration, with their limits, metrics and authorization,
for every listener alike. A listener (REST; a Kafka listener next) parses a request, calls the
broker, and shapes the answer. `service.py` is the way in.

Rules: work is per batch, never per record. Outcomes are values or LogError, partition by partition.
Each entry point authorizes its caller before anything else. State belongs to the `Broker` instance,
never to a module.

Must not know: HTTP, JSON, or the wire format of any client protocol.
"""
