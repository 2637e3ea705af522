"""Examples: pipelines over the flights that left New York City in 2013, as the demo loads them.

Purpose: programs to read, run and copy. `enrich` joins flights with airlines and weather,
`windowed_delays` sums delays up by hour and carrier, `dead_letters` sorts out malformed records,
`topic_to_parquet` writes files; `flights_project` is a project for `raftlog pipeline run`. Each of
the programs runs as `python -m raftlog_spark.examples.NAME --help`.

Rules: what a pipeline computes is a function from DataFrames to a DataFrame, that batch queries and
tests can call as well; starting it is a second one. Every run reads what is there and ends, and
goes on from its checkpoint the next time.

They must not know: more of raftlog than its users do.
"""
