"""Workloads over any cluster, run by `raftlog bench` and the repository's benchmarks.

Purpose: load a cluster through the shipped client, and measure throughput, latency in open loop,
rebalances, commits and transactions from outside.

Rules: a workload takes addresses and topics, and returns figures. It prints nothing. Latency at a
rate counts from the due time of a record. Samples are exact and bounded in number.

Must not know: how nodes are started, and their insides, goals and reports.
"""
