"""The verdict of a run: final reads, comparison of files, checks of histories, gaps."""

from __future__ import annotations

import asyncio
import hashlib
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

import aiohttp

from bench.cluster import Row
from raftlog.record.batch import iterate_headers
from raftlog.record.errors import LogError
from raftlog.record.header import BatchHeader
from tests.soak.fetching import FetchPosition, Part, fetch
from tests.soak.nemesis import Fault
from tests.soak.recording import FINAL, Recorder, operations, partition_name, partitions_in
from tests.verification.log_checker import check
from tests.verification.log_history import ACKS_ALL, FinalRead, Operation, Send

FINAL_TIMEOUT_S: Final = 120.0
RESUME_S_MAX: Final = 10.0
"""From the healing to the first acknowledgement of every partition."""
RETRY_S: Final = 0.2
ANOMALIES_KEPT_MAX: Final = 200
"""Of each partition: one lost record causes more anomalies."""


class UnreadError(Exception):
    """A replica could not be read to its end in time."""


@dataclass(slots=True)
class Verdict:
    """The findings in one run's histories."""

    acknowledged: int = 0
    sends: int = 0
    records_read: int = 0
    anomalies: list[str] = field(default_factory=list)
    gap_s: dict[str, float] = field(default_factory=dict)
    """By kind of fault, the longest gap between acknowledgements of a partition."""
    resume_s: dict[str, float] = field(default_factory=dict)
    """By kind, the longest time from the healing to a partition's next acknowledgement."""
    calm_gap_s: float = 0.0
    """The longest gap outside of all faults."""


async def read_all(addresses: Mapping[int, str], rows: Sequence[Row], history: Path) -> None:
    """Read every replica of these partitions to the common end, into the history.

    Writers must have stopped. Raises UnreadError.
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
    """The end offset of a partition, by its leader."""
    reason = ""
    while time.monotonic() < deadline:
        for address in addresses.values():
            url = f"http://{address}/topics/{topic}/partitions/{partition}/offsets"
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
                    if answer.status == 200:
                        return int((await answer.json(content_type=None))["end_offset"])
                    reason = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = repr(error)
        await asyncio.sleep(RETRY_S)
    raise UnreadError(f"no node knows the end of {partition_name(topic, partition)}: {reason}")


async def _read(  # noqa: PLR0917 - partition, node and end
    session: aiohttp.ClientSession,
    node_id: int,
    address: str,
    topic: str,
    partition: int,
    end: int,
    deadline: float,
) -> FinalRead:
    """Read one node's replica up to `end`, once its high watermark has reached `end`."""
    start = position = 0
    records: list[tuple[int, str]] = []
    reason: object = None
    is_first = True
    while is_first or position < end:
        try:
            parts: list[Part] = await fetch(
                session, address, [FetchPosition(topic, partition, position)]
            )
        except (aiohttp.ClientError, TimeoutError, LogError) as error:
            parts, reason = [], repr(error)
        moved = False
        for part in parts:
            if part.error_code:
                reason = part.error_code
                continue
            if is_first:
                is_first, start = False, part.log_start_offset
            records += part.records
            moved = moved or part.next_offset > position
            position = part.next_offset
        if not moved and position < end:
            if time.monotonic() > deadline:
                raise UnreadError(
                    f"node {node_id} serves {partition_name(topic, partition)} to {position}, "
                    f"which ends at {end}: {reason}"
                )
            await asyncio.sleep(RETRY_S)
    return FinalRead(
        partition=partition_name(topic, partition),
        node=str(node_id),
        start=start,
        end=position,
        records=tuple(records),
    )


# Files


def compare_files(data_dirs: Mapping[int, Path], topic_id: str = "*") -> list[str]:
    """Differences of the replicas' segment files, of one topic or all.

    All records must be committed.
    """
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


def check_sequences(data_dir: Path, topic_id: str) -> list[str]:
    """The batches of a topic's replicas that break the sequences of their producers."""
    faults: list[str] = []
    for replica in sorted((data_dir / "replicas" / topic_id).glob("*")):
        headers = (header for _, header in iterate_headers(b"".join(_chunks(replica))))
        found = list(sequence_faults(headers))
        faults += [f"partition {replica.name} of {topic_id}: {one}" for one in found]
    return faults


def sequence_faults(headers: Iterable[BatchHeader]) -> Iterator[str]:
    """Each batch of a log that does not continue its producer's sequence.

    Within an epoch the sequence is without gaps and repetitions, from 0 on, and no batch of an
    older epoch follows. A client that begins an epoch may send again: only the client knows.
    """
    expected: dict[int, tuple[int, int]] = {}
    for header in headers:
        if header.producer_id < 0 or header.is_control:
            continue
        epoch, following = expected.get(header.producer_id, (-1, 0))
        if header.producer_epoch < epoch:
            yield f"{header} is behind epoch {epoch}"
            continue
        wanted = following if header.producer_epoch == epoch else 0
        if header.base_sequence != wanted:
            yield f"{header} does not begin at sequence {wanted}"
        expected[header.producer_id] = (
            header.producer_epoch,
            header.base_sequence + header.record_count,
        )


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
    """A text: each replica's length, and its first batch that differs from the first replica."""
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
            parts.append(f"node {node_id} ends elsewhere")
    return "; ".join(parts)


# Histories


def judge(history: Path, faults: Sequence[Fault]) -> Verdict:
    """Check the histories of all partitions, one after the other."""
    verdict = Verdict()
    for partition in partitions_in(history):
        anomalies = [str(found) for found in check(operations(history, partition))]
        if len(anomalies) > ANOMALIES_KEPT_MAX:
            anomalies[ANOMALIES_KEPT_MAX:] = [f"and {len(anomalies)} in all in {partition}"]
        verdict.anomalies += anomalies
        measure(verdict, operations(history, partition), partition, faults)
    return verdict


def measure(
    verdict: Verdict, history: Iterable[Operation], partition: str, faults: Sequence[Fault]
) -> None:
    """Add one partition's counts, gaps and late resumptions to the verdict."""
    acked: list[int] = []
    for operation in history:
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
        # A gap of the next fault does not count for this one.
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
        # Gaps within the calm only: one that reaches into a fault belongs to the fault.
        inside = acked[bisect_left(acked, start) : bisect_left(acked, end)]
        calm = max((late - early for early, late in pairwise(inside)), default=0)
        verdict.calm_gap_s = max(verdict.calm_gap_s, calm / 1e9)


def longest_gap(times: Sequence[int], start: int, end: int, limit: int) -> int:
    """The longest gap between neighbours within [start, limit] that begins before `end`.

    `times` are sorted. Gaps before `start` belong to the former fault, after `limit` to the next.
    """
    inside = [start, *times[bisect_left(times, start) : bisect_left(times, end) + 1]]
    return max((min(late, limit) - early for early, late in pairwise(inside)), default=0)
