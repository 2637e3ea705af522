"""The soak: a real cluster under load and faults, with histories checked.

Workloads: `records` (topics under writers and readers), `registers` (the cluster's settings, for
the metadata quorum), `chain` (exactly once, by the Python client) and `kafka` (idempotence,
transactions and groups, by librdkafka). `nemesis` strikes all of them. `clients` and `worker`
write, read and record histories, `client_processes` are clients that are struck themselves,
`verdict` reads all replicas at the end and runs the checkers of tests/verification, and `power`
provides disks that lose data that was not synced. `scripts/soak` and tests/integration use this
package.
"""
