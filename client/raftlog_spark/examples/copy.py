"""Copies each record once into another topic, with key and headers, whatever fails.

The whole of exactly once is in the checkpoint and the sink's defaults. Kill this program at any
moment, and start it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from raftlog_spark.examples.flights import run, stream_of, write

BATCH_ROWS = 100_000


def start(
    spark: SparkSession, servers: str, *, source: str, target: str, checkpoint: str
) -> StreamingQuery:
    """Start copying the topic `source`. Its lag is that of the group `copy.<target>`."""
    letters = stream_of(
        spark,
        servers,
        source,
        includeHeaders="true",
        maxOffsetsPerTrigger=str(BATCH_ROWS),
        commitToGroup=f"copy.{target}",
    )
    # Without the columns `topic` and `partition`, which would choose the place in the target.
    rows = letters.select("key", "value", "headers")
    return write(rows, servers, topic=target, checkpoint=checkpoint)


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run(start, "copy", __doc__, given, source="topic to copy", target="topic for the copy")


if __name__ == "__main__":
    main()
