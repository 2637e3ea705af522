"""The soak: a real cluster under load and faults, and every operation judged.

`clients` and `worker` write and read and note what they were told, `faults` and `cuts` hurt the
nodes, `verdict` reads everything at the end and has tests/checker judge it, `power` is for disks
that lose what was not synced. `scripts/soak` and tests/integration/test_faults_*.py use all this.
"""
