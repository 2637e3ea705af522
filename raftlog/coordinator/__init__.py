"""The coordinators: consumer groups, their offsets, and transactions.

Purpose: group and transaction state, each led by the leader of its internal partition, so that the
data path replicates the state. The package fixes the direction of imports; its state machines come
with consumer groups.

Rules: state machines are plain synchronous code without HTTP.

Must not know: routes, schemas, content types.
"""
