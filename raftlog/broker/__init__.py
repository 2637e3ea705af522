"""The broker performs the operations that a node offers its clients, for every protocol.

It has produce, fetch, offsets and administration, with their limits, metrics and authorization. A
listener (REST, Kafka) parses a request, calls the broker, and shapes the response. `service.py` is
the entry point.

Work is per batch, never per record. Outcomes are values or LogError, partition by partition. Each
entry point authorizes its caller before anything else. State belongs to the `Broker` instance,
never to a module. The package knows no HTTP, no JSON and no wire format of any client protocol.
"""
