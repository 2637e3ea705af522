"""Workloads over any cluster: `raftlog bench` and the benchmarks of the repository run them.

Purpose: load a cluster through the shipped client, and measure from outside: throughput, latency
in open loop, rebalances, commits, transactions.

Rules: a workload takes addresses and topics, and returns figures; it prints nothing. Latency at a
rate counts from the due time of a record. Samples are exact and bounded in number.

Must not know: how nodes are started, and their insides; goals, reports.
"""
