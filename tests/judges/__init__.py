"""Judges of the Kafka listener: programs that others wrote, against a real cluster.

Purpose: to find where raftlog differs from Kafka. A judge runs clients or tools as they are, and
compares their results with the log: Python clients, kcat, Kafka's command line tools, Connect,
Streams, Spark. `scripts/trial-kafka` runs all of them, for longer and with more kills;
tests/integration/test_kafka_judges.py runs them briefly.

Reading order: `trial` (the cluster under judgement), `programs` (processes with a deadline), `jars`
(Maven, the cache), then the judges; `catalog` lists them.

Rules: a judge fails by AssertionError with the evidence, and raises UnavailableError without its
program; every process has a deadline and a bounded heap; no network but Maven's resolution, which
`scripts/trial-kafka` alone starts.

Must not know: the insides of the node.
"""
