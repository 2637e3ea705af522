"""Transactions on whole nodes, under the faults of tests/simulation/data.

Producers of transactions, their zombies and an operator work through the broker services of any
node, in a `DataWorld`: its topics, replicas, readers and nemeses are those of the data path. The
partitions of `__transaction_state` are targets of the faults, too.

- `clients`: incarnations of transactional ids, as the Python client behaves, and their zombies
- `chain`: read, process, write, with the group's offsets in the transactions
- `committed_log`: the committed batches of one partition, read from the simulated disks
- `invariants`: rules between the partitions and the coordinators' log, checked after every commit
- `histories`: random histories, `scripts/simulate transactions 0:200`
- `planted_bugs`: a mistake for each invariant, found by random histories alone

The clients' history is judged by tests/verification/transaction_checker.py.
"""
