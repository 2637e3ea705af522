"""The examples are pipelines over the flights from New York City in 2013.

Purpose: programs to read, run and copy, over the flights that the demo loads. `enrich` joins
flights with airlines and weather, `weather_join` two streams. `windowed_delays` sums delays up by
hour and carrier, `rotations` finds sessions with separate state. `dead_letters` routes malformed
records to a separate topic. `current_table` turns changes into a compacted topic. `copy` copies a
topic exactly once, `replay` a window of it. `topic_to_parquet` writes files. `flights_project` is a
project for `raftlog pipeline run`. Each program runs as `python -m raftlog_spark.examples.NAME
--help`.

Rules: the computation of a pipeline is a function from DataFrames to a DataFrame, for batch queries
and tests as well. A second function starts it. Every run reads the existing records and ends. The
next run continues from the checkpoint.

Must not know: more of raftlog than its users do.
"""
