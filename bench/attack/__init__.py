"""The attack: hostile clients against a running cluster, under the load of others.

Hostile clients come from their own addresses (127.0.0.2 and following), in a process of their
own (`attacks`, inputs from `inputs`); `victims` are the other clients; `verdict` has the bounds
that must hold. `scripts/attack` runs all; the checks run a minute of it, with wider bounds
of time.
"""
