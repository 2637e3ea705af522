"""Fetches from a node's own replica: /v1/fetch with `any_replica`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from tests.record.wire import FetchFrameReader
from tests.verification.log_history import Pairs

PARTITION_BYTES_MAX: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 8 << 20
BATCH_BYTES_MAX: Final = 64 << 20


class FetchPosition(NamedTuple):
    """A partition, and its next offset to fetch."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """The fetched data of one partition."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    next_offset: int
    records: Pairs
    message: str


async def fetch(
    session: aiohttp.ClientSession,
    address: str,
    positions: Sequence[FetchPosition],
    *,
    wait_ms: int = 0,
    timeout_s: float = 5.0,
) -> list[Part]:
    """Fetch from one node's replicas. Raises aiohttp.ClientError, TimeoutError, LogError."""
    next_offsets = {position[:2]: position.offset for position in positions}
    body = {
        "partitions": [
            {**position._asdict(), "max_bytes": PARTITION_BYTES_MAX} for position in positions
        ],
        "max_bytes": ANSWER_BYTES_MAX,
        "max_wait_ms": wait_ms,
        "any_replica": True,
    }
    reader = FetchFrameReader(frame_bytes_max=BATCH_BYTES_MAX)
    parts: list[Part] = []
    async with session.post(
        f"http://{address}/v1/fetch", json=body, timeout=aiohttp.ClientTimeout(timeout_s)
    ) as answer:
        answer.raise_for_status()
        for frame in reader.feed(await answer.read()):
            key = frame.topic, frame.partition
            start = next_offsets[key]
            records: list[tuple[int, str]] = []
            if not frame.error_code:
                for batch in iterate_batches(frame.data):
                    for record in decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX):
                        if record.offset >= start:
                            records.append((record.offset, (record.value or b"").decode()))
                next_offsets[key] = frame.next_offset
            parts.append(
                Part(
                    *key,
                    frame.error_code,
                    frame.high_watermark,
                    frame.log_start_offset,
                    frame.next_offset,
                    tuple(records),
                    frame.message if frame.error_code else "",
                )
            )
        reader.finish()
    return parts
