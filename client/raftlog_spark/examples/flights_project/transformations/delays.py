"""Delays by hour and carrier, into the topic `flights-delays`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from raftlog_spark.examples.flights import flights_in, records, stream_of
from raftlog_spark.examples.windowed_delays import hourly_delays

# Set by `raftlog pipeline run`, from --servers.
SERVERS = os.environ["RAFTLOG_SERVERS"]

dp.create_sink("delays", "raftlog", {"bootstrap.servers": SERVERS, "topic": "flights-delays"})


@dp.append_flow(target="delays")
def hourly() -> DataFrame:
    """Each hour once it is over."""
    flights = flights_in(stream_of(SparkSession.active(), SERVERS, "flights"))
    return records(hourly_delays(flights), key="carrier")
