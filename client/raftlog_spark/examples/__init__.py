"""Examples: pipelines over the flights that left New York City in 2013, as the demo loads them.

Purpose: programs to read, run and copy. `enrich` joins flights with airlines and weather,
`windowed_delays` sums delays up by hour and carrier, `dead_letters` routes malformed records to a
topic of their own, `topic_to_parquet` writes files; `flights_project` is a project for `raftlog
pipeline run`. Each program runs as `python -m raftlog_spark.examples.NAME --help`.

Rules: the computation of a pipeline is a function from DataFrames to a DataFrame, for batch queries
and tests as well; a second function starts it. Every run reads the existing records and ends; the
next run continues from the checkpoint.

Must not know: more of raftlog than its users do.
"""
