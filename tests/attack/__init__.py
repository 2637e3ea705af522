"""The attack: hostile clients against a running cluster, under the load of others.

Hostile clients come from their own addresses (127.0.0.2 and following), in a process of their
own (`attacks`, `kafka_attacks`; inputs from `inputs`, `kafka_inputs`); `victims` are the other
clients; `verdict` has the bounds that must hold. `kafka_decoders` needs no cluster.
`scripts/attack` runs all; the checks run two minutes of it, with wider bounds of time.
"""
