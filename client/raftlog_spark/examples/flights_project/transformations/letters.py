"""Good flights go to the topic `flights-good`, malformed flights to `flights-bad`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from raftlog_spark.examples.dead_letters import routed
from raftlog_spark.examples.flights import stream_of

SERVERS = os.environ["RAFTLOG_SERVERS"]

# Without an option `topic`, the column `topic` names each record's topic.
dp.create_sink("letters", "raftlog", {"bootstrap.servers": SERVERS})


@dp.append_flow(target="letters")
def sorted_letters() -> DataFrame:
    """Every record, with its topic."""
    letters = stream_of(SparkSession.active(), SERVERS, "flights", includeHeaders="true")
    return routed(letters, good="flights-good", bad="flights-bad")
