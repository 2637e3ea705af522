"""The coordinators: consumer groups, their offsets, and transactions.

Purpose: group and transaction state, each led by the leader of its internal partition, so that the
data path replicates the state.

Rules: state machines are plain synchronous code. A decision reads the state and returns records and
a response; only the replay of records changes the state. Only `shard`, `load`, `service` do I/O.

Must not know: routes, JSON, content types, API keys.
"""
