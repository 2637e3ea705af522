"""`scripts/bench kafka`: Kafka's own clients against raftlog's Kafka listener.

Beside Apache Kafka, if its classpath is given (`--kafka-classpath`): three nodes of each, the same
programs with the same settings, the systems taking turns.
"""
