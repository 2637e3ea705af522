"""Kafka's messages are annotated Structs (`raftlog/schema`), in a module per family of APIs.

Generated from Kafka's definitions by scripts/generate_kafka_messages.py. One class serves all
versions. `Versions` are the versions that Kafka 4 accepts.
"""
