"""A thin client of Spark Connect: `python -m tests.spark.connect_client SERVER NODES TOPIC OUT …`.

Imports nothing of raftlog, and starts no Java: the sources and sinks run in the server.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql.connect.session import SparkSession

TIMEOUT_S = 120


def main(server: str, nodes: str, topic: str, out: str, directory: str) -> None:
    """Write rows, read them, and copy them as a stream; print them, and the stream's progress."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    place = {"bootstrap.servers": nodes}
    frame = spark.range(0, 100).selectExpr("cast(id AS string) AS value")
    frame.write.format("raftlog").mode("append").options(**place, topic=topic).save()

    def rows(of: str) -> list[str]:
        found = spark.read.format("raftlog").options(**place, subscribe=of).load()
        return [row[0] for row in found.selectExpr("cast(value AS string)").collect()]

    query = (
        spark.readStream.format("raftlog")
        .options(**place, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
        .select("value")
        .writeStream.format("raftlog")
        .options(**place, topic=out, checkpointLocation=directory)
        .trigger(availableNow=True)
        .start()
    )
    ended = query.awaitTermination(TIMEOUT_S)
    progress: list[Any] = query.recentProgress
    latest = [json.loads(one["sources"][0]["latestOffset"]) for one in progress]
    found = {
        "ended": ended,
        "rows": rows(topic),
        "copied": rows(out),
        "lags": [one["lag"]["records"] for one in latest],
        "raftlog": sorted(name for name in sys.modules if name.startswith("raftlog")),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
