"""raftlog_spark: raftlog's topics as Spark DataFrames, batch and streaming, without a jar.

Purpose: `spark.read.format("raftlog")` and its streaming and writing kin, through Spark's Python
Data Source API, with the option names and columns of Spark's Kafka source; and `session()`, which
builds a Spark session that works, with Java or without.

Rules: of raftlog it imports only `raftlog_client` and `raftlog.record`. What runs on executors
pickles, and its modules import nothing heavy that they do not need. No Python loop per record.
A batch that is read again reads the same range again.

It must not know: how a node stores, replicates or elects.
"""

from raftlog_spark.session import session

__all__ = ["session"]
