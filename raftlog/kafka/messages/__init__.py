"""Kafka's messages as annotated Structs (`raftlog/schema`), one module an API.

Generated from Kafka's definitions by scripts/generate_kafka_messages.py. One class serves all
versions; `Versions` are those that Kafka 4 takes.
"""
