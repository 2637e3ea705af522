"""The Kafka listener: Kafka's wire protocol in front of the node's broker.

Frames and messages come in by `listener` and `connection`, `protocol` names the APIs and versions,
`handlers` turn each request into an operation of `raftlog.broker`, and its outcome into Kafka's
answer. Rules: answers of one connection leave in the order of its requests; sizes are checked
before memory is taken; nothing is acknowledged before the broker says so. It must not know HTTP,
JSON, storage or replication.
"""
