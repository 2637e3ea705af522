"""The coordinators of consumer groups, their offsets, and transactions.

The leader of an internal partition leads the state of its groups and transactions, so the data path
replicates the state. State machines are plain synchronous code. A decision reads the state and
returns records and a response. Only the replay of records changes the state. Only `shard`, `load`
and `service` do I/O. The package knows no routes, JSON, content types or API keys.
"""
