"""What is wrong: final reads of every replica, files compared, histories judged, gaps measured."""

from __future__ import annotations

import asyncio
import hashlib
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

import aiohttp

from bench.replication.cluster import Row
from bench.soak.faults import Fault
from bench.soak.fetching import Part, Place, fetch
from bench.soak.recording import FINAL, Recorder, operations, partitions_in, spelled
from raftlog.record.batch import iterate_headers
from raftlog.record.errors import LogError
from tests.verification.log_checker import check
from tests.verification.log_history import ACKS_ALL, FinalRead, Send

FINAL_TIMEOUT_S: Final = 120.0
RESUME_S_MAX: Final = 10.0
"""From the healing to the first acknowledgement of every partition (design page on faults)."""
RETRY_S: Final = 0.2
ANOMALIES_KEPT_MAX: Final = 200
"""Of each partition: one lost record brings others with it."""


class UnreadError(Exception):
    """A replica did not let itself be read to the end in time."""


@dataclass(slots=True)
class Verdict:
    """What one run's histories say."""

    acknowledged: int = 0
    sends: int = 0
    records_read: int = 0
    anomalies: list[str] = field(default_factory=list)
    gap_s: dict[str, float] = field(default_factory=dict)
    """By kind of fault, the longest time in which some partition acknowledged nothing."""
    resume_s: dict[str, float] = field(default_factory=dict)
    """By kind, the longest time from the healing to a partition's next acknowledgement."""
    calm_gap_s: float = 0.0
    """The longest outside of all faults."""


async def read_all(addresses: Mapping[int, str], rows: Sequence[Row], history: Path) -> None:
    """Read every replica of these partitions to the common end, into the history.

    Nobody may write any more. Raises UnreadError.
    """
    recorder = Recorder(history, FINAL)
    deadline = time.monotonic() + FINAL_TIMEOUT_S
    try:
        async with aiohttp.ClientSession() as session:
            for row in rows:
                end = await _end(session, addresses, row.topic, row.partition, deadline)
                for node_id in sorted(row.replicas):
                    recorder.add(
                        await _read(
                            session,
                            node_id,
                            addresses[node_id],
                            row.topic,
                            row.partition,
                            end,
                            deadline,
                        )
                    )
    finally:
        recorder.close()


async def _end(
    session: aiohttp.ClientSession,
    addresses: Mapping[int, str],
    topic: str,
    partition: int,
    deadline: float,
) -> int:
    """The end of a partition, by its leader."""
    said = ""
    while time.monotonic() < deadline:
        for address in addresses.values():
            url = f"http://{address}/topics/{topic}/partitions/{partition}/offsets"
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
                    if answer.status == 200:
                        return int((await answer.json(content_type=None))["end_offset"])
                    said = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                said = repr(error)
        await asyncio.sleep(RETRY_S)
    raise UnreadError(f"nobody tells the end of {spelled(topic, partition)}: {said}")


async def _read(  # noqa: PLR0917 - what to read, and where
    session: aiohttp.ClientSession,
    node_id: int,
    address: str,
    topic: str,
    partition: int,
    end: int,
    deadline: float,
) -> FinalRead:
    """All that one node's replica has, once it knows that all of it is committed."""
    start = position = 0
    records: list[tuple[int, str]] = []
    said: object = None
    is_first = True
    while is_first or position < end:
        try:
            parts: list[Part] = await fetch(session, address, [Place(topic, partition, position)])
        except (aiohttp.ClientError, TimeoutError, LogError) as error:
            parts, said = [], repr(error)
        moved = False
        for part in parts:
            if part.error_code:
                said = part.error_code
                continue
            if is_first:
                is_first, start = False, part.log_start_offset
            records += part.records
            moved = moved or part.next_offset > position
            position = part.next_offset
        if not moved and position < end:
            if time.monotonic() > deadline:
                raise UnreadError(
                    f"node {node_id} gives {spelled(topic, partition)} to {position}, "
                    f"and it ends at {end}: {said}"
                )
            await asyncio.sleep(RETRY_S)
    return FinalRead(
        partition=spelled(topic, partition),
        node=str(node_id),
        start=start,
        end=position,
        records=tuple(records),
    )


# Files


def compare_files(data_dirs: Mapping[int, Path], topic_id: str = "*") -> list[str]:
    """How the replicas' segment files differ, of one topic or all. All of it was committed."""
    replicas: dict[str, dict[int, Path]] = {}
    for node_id, data_dir in sorted(data_dirs.items()):
        for path in sorted((data_dir / "replicas").glob(f"{topic_id}/*")):
            if path.is_dir() and path.name.isdigit():
                replicas.setdefault(f"{path.parent.name}/{path.name}", {})[node_id] = path
    differing: list[str] = []
    for name, paths in replicas.items():
        if len({_digest(path) for path in paths.values()}) > 1:
            differing.append(f"the files of {name} differ: {_difference(paths)}")
    return differing


def _chunks(replica: Path) -> Iterator[bytes]:
    for path in sorted(replica.glob("*.log")):
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk


def _digest(replica: Path) -> str:
    digest = hashlib.blake2b()
    for chunk in _chunks(replica):
        digest.update(chunk)
    return digest.hexdigest()


def _difference(paths: Mapping[int, Path]) -> str:
    """In words: how long each is, and the first batch in which one differs from the first."""
    contents = {node_id: b"".join(_chunks(path)) for node_id, path in paths.items()}
    parts = [f"node {node_id} has {len(data)} bytes" for node_id, data in contents.items()]
    (_, first), *others = contents.items()
    for node_id, data in others:
        if data == first:
            continue
        ours, theirs = iterate_headers(first), iterate_headers(data)
        for (at, header), (_, other) in zip(ours, theirs, strict=False):
            end = at + header.size_bytes
            if first[at:end] != data[at:end]:
                parts.append(f"node {node_id} differs from offset {header.base_offset}: {other}")
                break
        else:
            parts.append(f"node {node_id} has an end of its own")
    return "; ".join(parts)


# Histories


def judge(history: Path, faults: Sequence[Fault]) -> Verdict:
    """Check all partitions, one after the other."""
    verdict = Verdict()
    for partition in partitions_in(history):
        anomalies = [str(found) for found in check(operations(history, partition))]
        if len(anomalies) > ANOMALIES_KEPT_MAX:
            anomalies[ANOMALIES_KEPT_MAX:] = [f"and {len(anomalies)} in all in {partition}"]
        verdict.anomalies += anomalies
        _measure(verdict, history, partition, faults)
    return verdict


def _measure(verdict: Verdict, history: Path, partition: str, faults: Sequence[Fault]) -> None:
    acked: list[int] = []
    for operation in operations(history, partition):
        if isinstance(operation, Send):
            verdict.sends += len(operation.values)
            if operation.outcome == "ok" and operation.acks == ACKS_ALL:
                assert operation.completed is not None
                acked.append(operation.completed)
                verdict.acknowledged += len(operation.values)
        elif isinstance(operation, FinalRead):
            verdict.records_read += len(operation.records)
    acked.sort()
    if not acked:
        return
    for fault, following in zip_longest(faults, faults[1:]):
        # What the next fault costs is not this one's.
        limit = acked[-1] if following is None else following.struck
        after = min(fault.whole or fault.healed or fault.struck, limit)
        gap_s = longest_gap(acked, fault.struck, after, limit) / 1e9
        verdict.gap_s[fault.kind] = max(verdict.gap_s.get(fault.kind, 0.0), gap_s)
        if not fault.healed or limit < fault.healed:
            continue
        first = acked[bisect_left(acked, fault.healed)]
        resume_s = (min(first, limit) - fault.healed) / 1e9
        verdict.resume_s[fault.kind] = max(verdict.resume_s.get(fault.kind, 0.0), resume_s)
        if resume_s > RESUME_S_MAX:
            verdict.anomalies.append(
                f"{partition} acknowledged nothing for {resume_s:.1f} s after the healing of "
                f"{fault.kind} of {fault.victims}"
            )
    edges = [acked[0], *(t for fault in faults for t in (fault.struck, fault.whole)), acked[-1]]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        # Only what lies within: a gap that begins in the calm belongs to the fault.
        inside = acked[bisect_left(acked, start) : bisect_left(acked, end)]
        calm = max((late - early for early, late in pairwise(inside)), default=0)
        verdict.calm_gap_s = max(verdict.calm_gap_s, calm / 1e9)


def longest_gap(times: Sequence[int], start: int, end: int, limit: int) -> int:
    """The longest time between neighbours, within [start, limit], if it begins before `end`.

    `times` are sorted. What was before `start` is the fault before, what is after `limit` the next.
    """
    inside = [start, *times[bisect_left(times, start) : bisect_left(times, end) + 1]]
    return max((min(late, limit) - early for early, late in pairwise(inside)), default=0)
