"""Requests of many parts leave no circles of objects, which only a full collection frees."""

from __future__ import annotations

import gc
import json
from collections import Counter

import pytest

from raftlog.record.frames import ProduceFrame
from raftlog.record.types import PartitionId
from tests.broker.data_fakes import batch_of
from tests.record.wire import encode_produce_frames
from tests.rest.data_fakes import data_node

COUNT = 2_000
NONE = [{"topic": f"none-{one}", "partition": 0, "offset": 0} for one in range(COUNT)]
FRAMES = [
    ProduceFrame(f"none-{one}", PartitionId(0), bytes(batch_of([b"x"]).data))
    for one in range(COUNT)
]
REQUESTS = {
    "fetch": ("/v1/fetch", json.dumps({"partitions": NONE, "max_wait_ms": 0}).encode(), None),
    "offsets": (
        "/v1/offsets",
        json.dumps({"topics": {one["topic"]: [0] for one in NONE}}).encode(),
        None,
    ),
    "produce": ("/v1/produce", encode_produce_frames(FRAMES), "application/vnd.raftlog.batches"),
    "v2": (
        "/topics/six",
        json.dumps({"records": [{"value": 1, "partition": 99}] * COUNT}).encode(),
        None,
    ),
    "v3 stream": ("/v3/clusters/-/topics/one/records", b"{}" * COUNT, None),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_circles_are_left(name: str) -> None:
    path, body, media_type = REQUESTS[name]
    async with data_node() as one:

        async def request() -> None:
            await one.peer.request(
                "POST", path, body, Content_Type=media_type or "application/json"
            )

        await request()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await request()
            gc.collect()
            found = Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert found.total() < COUNT / 10, found.most_common(8)
