"""The oracle of the data path: what clients did, and what is wrong with it.

`history` holds the operations, `checker` finds the anomalies: pure functions, of no simulator and
no node. Simulated histories and soaks of real processes are judged by the same code; a soak writes
its operations as JSON lines while it runs (`HistoryWriter`), and
`python -m tests.verification.log_checker FILE` judges them.
"""
