"""Examples: pipelines over the flights that left New York City in 2013, as the demo loads them.

Purpose: programs to read, run and copy. `enrich` joins flights with airlines and weather,
`weather_join` two streams; `windowed_delays` sums delays up by hour and carrier, `rotations` finds
sessions with state of their own; `dead_letters` routes malformed records to a topic of their own;
`current_table` turns changes into a compacted topic; `copy` copies a topic exactly once, `replay`
a window of it; `topic_to_parquet` writes files; `flights_project` is a project for `raftlog
pipeline run`. Each program runs as `python -m raftlog_spark.examples.NAME --help`.

Rules: the computation of a pipeline is a function from DataFrames to a DataFrame, for batch queries
and tests as well; a second function starts it. Every run reads the existing records and ends; the
next run continues from the checkpoint.

Must not know: more of raftlog than its users do.
"""
