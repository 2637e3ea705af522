"""Found by Spark itself, as any top-level module named `pyspark_*` with a `DefaultSource`.

So `spark.read.format("raftlog")` works without registration, in a classic session and in Spark
Connect alike.
"""

from raftlog_spark.data_source import RaftlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
