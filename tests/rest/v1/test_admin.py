"""Metadata of many partitions takes turns of the event loop."""

from __future__ import annotations

import pytest

from raftlog.broker.limits import WorkTurns
from raftlog.rest.v1 import admin
from tests.rest.data_fakes import data_node


async def test_metadata_of_many_partitions_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    wait = WorkTurns.wait

    async def counted(self: WorkTurns) -> None:
        nonlocal turns
        turns += 1
        await wait(self)

    monkeypatch.setattr(WorkTurns, "wait", counted)
    async with data_node() as one:
        assert (await one.peer.request("GET", "/v1/metadata")).status == 200
        assert not turns
        monkeypatch.setattr(admin, "PARTITIONS_PER_TURN", 5)
        topics = (await one.peer.request("GET", "/v1/metadata")).json["topics"]
        assert [len(topic["partitions"]) for topic in topics] == [1, 6]
        assert turns
