"""raftlog_spark presents raftlog's topics as Spark DataFrames, batch and streaming, without a jar.

Purpose: `spark.read.format("raftlog")` with its streaming and writing counterparts, through Spark's
Python Data Source API, with the option names and columns of Spark's Kafka source. `session()`
builds a working Spark session, with Java or without.

Rules: of raftlog, only `raftlog_client` and `raftlog.record` are imported. Code for executors
pickles, and its modules avoid heavy imports. No Python loop per record. A replayed batch reads the
same range.

Must not know: how a node stores, replicates or elects.
"""

from raftlog_spark.session import session

__all__ = ["session"]
