"""The soak: a real cluster under load and faults, with histories checked.

Two workloads: `records` (topics under writers and readers) and `registers` (the cluster's settings,
for the metadata quorum). `nemesis` strikes both. `clients` and `worker` write, read and record
histories, `verdict` reads all replicas at the end and runs the checkers of tests/verification, and
`power` provides disks that lose data that was not synced. `scripts/soak` and tests/integration use
this package.
"""
