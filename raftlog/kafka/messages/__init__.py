"""Kafka's messages as annotated Structs (`raftlog/schema`), a module for each family of APIs.

Generated from Kafka's definitions by scripts/generate_kafka_messages.py. One class serves all
versions; `Versions` are those that Kafka 4 takes.
"""
