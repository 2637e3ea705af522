"""The data path under every fault: replicated partitions, their producers and consumers.

On top of `tests.simulation.node_world` (whole nodes) and `tests.verification` (the checker of the
clients' history). Modules:

- `replicas`: the content of each replica, batch by batch, on the simulated disks
- `invariants`: rules over all replicas, checked after every event
- `clients`, `consumers`: producers and consumers, which write the history
- `data_world`: a cluster with topics, clients and both checkers; healing
- `final_checks`: the checks at the end of a history
- `nemesis`: faults of data, beside those of `tests.simulation.faults`
- `operators`: lost disks replaced, records and topics deleted, brokers put in maintenance
- `ingredients`: kinds of faults and operations that a history has, or has not; those kept out
- `storage_faults`: files that are lost, rot, or cannot be written
- `histories`: random histories, `python -m tests.simulation.data.histories 0:200`
- `planted_bugs`: the ten mistakes of docs/decisions/ten-mistakes.md and a list of blind spots,
  planted one at a time; `planted_runs` counts the seeds that find one

`test_rows_*` hold a directed scenario for each row of FAULTS.md, `test_planted_bugs` shows the
finding of each mistake, `test_histories` runs many seeds.
"""
