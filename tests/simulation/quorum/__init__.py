"""The metadata quorum in the simulated world: members over simulated disks and links.

`member_world.py` starts members and their clients, `checker.py` holds the invariants of Raft after
every event, `schedules.py` makes a random history of a seed. The tests are random schedules
(`test_schedules.py`) and directed traces of single defects (`test_defects_*.py`).
"""
