"""The Kafka listener puts Kafka's wire protocol in front of the node's broker.

`listener` receives frames and sends responses, `apis` names the APIs and versions,
`handlers` turn each request into an operation of `raftlog.broker`, and its outcome into Kafka's
response. Rules: responses of one connection leave in the order of its requests. Sizes are checked
before memory is taken. No write is acknowledged before the broker acknowledges it. It must not know
HTTP, JSON, storage or replication.
"""
