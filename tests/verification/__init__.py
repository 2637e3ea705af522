"""History checkers: of the log (records of partitions), and of registers (linearizability).

`log_history` and `register_history` define the operations, `log_checker` and `register_checker`
find the anomalies: pure functions, independent of simulator and nodes. The same checkers judge
simulated histories and soaks of real processes. A soak writes its operations as JSON lines
(`history_file`); `python -m tests.verification.log_checker FILE` checks a history of records.
"""
