"""`scripts/bench kafka`: Kafka's own clients against raftlog's Kafka listener.

With `--kafka-classpath`, in turn with three nodes of Apache Kafka, by the same programs.
"""
