"""The data path under every fault there is: replicated partitions, their writers and readers.

On top of `tests.simulation.node_world` (whole nodes) and `tests.verification` (the oracle over what
clients did). Modules:

- `replicas`: what each replica holds, batch by batch, as the simulated disks have it
- `invariants`: what must hold of all replicas after every event
- `clients`, `consumers`: producers and readers, who write the history
- `data_world`: a cluster with topics, clients and both checkers; healing
- `judging`: the last judgement
- `nemesis`: faults that only data has, beside those of `tests.simulation.faults`
- `operators`: lost disks replaced, records and topics deleted, brokers put in maintenance
- `histories`: random histories, `python -m tests.simulation.data.histories 0:200`
- `mistakes`: the ten mistakes of replication.md, planted one at a time

`test_rows_*` hold a directed scenario for each row of faults.md, `test_mistakes` shows that each
mistake is found, `test_histories` runs many seeds.
"""
