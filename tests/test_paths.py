"""The path of a produce has few functions, and few of them carry the record.

The limits only fall. A change that needs another function on the path removes one, or says why the
limit rises. `python -m tests.paths` lists the functions.
"""

from __future__ import annotations

from tests.paths import way

CALLED_MAX = 75
CARRYING_MAX = 14


def test_path_of_a_kafka_produce_does_not_grow() -> None:
    found = way()
    assert len(found.called) <= CALLED_MAX, found.called
    assert len(found.carrying) <= CARRYING_MAX, sorted(found.carrying)
    assert "controller/lead_permit.py:LeadPermit.may_act" in found.called
    assert "replication/leader/role.py:LeaderRole.append" in found.carrying
