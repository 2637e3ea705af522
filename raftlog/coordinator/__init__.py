"""The coordinators: consumer groups, their offsets, and transactions.

Purpose: group and transaction state, each led by the leader of its internal partition, so that the
data path replicates it. This layer is in place so that imports already point the right way; its
state machines come with consumer groups.

Rules: state machines are plain synchronous code that know nothing of HTTP.

Must not know: routes, schemas, content types.
"""
