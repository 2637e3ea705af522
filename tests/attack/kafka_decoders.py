"""The attack without sockets: mutated requests through the decoders of the Kafka listener.

A frame takes the listener's path: the table of APIs, the head, the message, and the record batches
of Produce. Frames that the listener refuses for their API or version are refused here, too. A frame
gives a message, or an error that the listener maps; it takes little memory, and does not hold the
event loop.

`python -m tests.attack --only kafka-decoders --inputs N` runs it on all cores. Inputs are made in
chunks, each of a seed of its own, so that a failure is repeated by its chunk.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import psutil

from raftlog.kafka.apis import API_VERSIONS, APIS, unsupported_version
from raftlog.kafka.framing import parse_head
from raftlog.record.batch import split_batches
from raftlog.record.errors import LogError
from raftlog.record.types import Buffer
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.schema.errors import DecodeError
from tests.attack.kafka_inputs import FrameMutator, claimed, crowded, tagged, unknown_tags, versions
from tests.attack.verdict import LOOP_HELD_S_MAX

MIB: Final = 1 << 20
CHUNK: Final = 50_000
MEMORY_BYTES_MAX: Final = 64 * MIB
"""More than this over its own memory, and a process of this attack gets MemoryError."""
SHARE_MIN: Final = 0.05
"""Least share of frames that must be taken, and as much that must be refused."""
FAILURES_SHOWN: Final = 3
NICENESS: Final = 19
LARGE_BYTES: Final = MIB
"""Largest frame but those of Produce."""


class Outcome(msgspec.Struct):
    """The results of some frames."""

    taken: int = 0
    refused: int = 0
    failures: int = 0
    shown: list[str] = []
    """The first failures: chunk, error, frame."""
    longest_s: float = 0.0
    """Processor time of the most expensive frame."""
    longest: str = ""
    """API and version of that frame."""
    memory_bytes: int = 0
    """Most memory of one process, with its own of about 60 MiB."""

    def add(self, other: Outcome) -> None:
        """Add the outcome of other frames."""
        self.taken += other.taken
        self.refused += other.refused
        self.failures += other.failures
        self.shown = [*self.shown, *other.shown][:FAILURES_SHOWN]
        if other.longest_s > self.longest_s:
            self.longest_s, self.longest = other.longest_s, other.longest
        self.memory_bytes = max(self.memory_bytes, other.memory_bytes)

    @property
    def frames(self) -> int:
        """How many frames there were."""
        return self.taken + self.refused + self.failures

    def __str__(self) -> str:
        return (
            f"{self.frames:,} frames: {self.taken:,} taken, {self.refused:,} refused, "
            f"{self.failures} failed; {self.memory_bytes >> 20} MiB of memory at most, "
            f"{self.longest_s * 1000:.1f} ms for the longest ({self.longest})"
        )

    def findings(self, slack: float = 1.0) -> list[str]:
        """Every bound that was broken, in words. Bounds of time are `slack` times as wide."""
        found = [f"a frame failed: {one}" for one in self.shown]
        if min(self.taken, self.refused) < SHARE_MIN * self.frames:
            found.append("the frames were nearly all sound, or nearly all refused")
        if self.longest_s > LOOP_HELD_S_MAX * slack:
            found.append(f"{self.longest} took {self.longest_s * 1000:.0f} ms of processor time")
        return found


def decode(frame: Buffer) -> bool:
    """Decode a frame without its size; whether the listener goes on to its handler.

    Raises DecodeError, LogError: errors that the listener maps.
    """
    key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
    api = APIS.get(key)
    if api is None:
        return False
    if not api.first <= version <= api.last:
        if key == API_VERSIONS:
            unsupported_version(frame)
        return False
    head = parse_head(frame, is_flexible=api.is_request_flexible(version))
    message, _ = api.request_decoder(version)(frame, head.end, ELEMENTS_MAX)
    if api.takes_records:
        for topic in message.topic_data:
            for one in topic.partition_data:
                split_batches(one.records or b"", max_message_bytes=MIB, allow_transactional=True)
    return True


def _judge(frame: bytes, where: str, outcome: Outcome, *, may_be_taken: bool) -> None:
    """Decode a frame, and count the result."""
    begun = time.thread_time()
    try:
        if decode(frame):
            assert may_be_taken, "taken in spite of a bound"
            outcome.taken += 1
        else:
            outcome.refused += 1
    except (DecodeError, LogError):
        outcome.refused += 1
    except Exception as error:  # each is a finding, whatever it is
        outcome.failures += 1
        if len(outcome.shown) < FAILURES_SHOWN:
            outcome.shown.append(f"{where}: {error!r} of {frame[:200].hex()}")
    seconds = time.thread_time() - begun
    if seconds > outcome.longest_s:
        outcome.longest_s, outcome.longest = seconds, where


def large_frames() -> Iterator[tuple[str, bytes, bool]]:
    """Frames at the bounds, and whether they may be taken.

    Many elements, claims of more, and messages of nothing but tags.
    """
    tags = unknown_tags(LARGE_BYTES - 1_000)
    for api, version in versions():
        name = f"{api.name} {version}"
        for count in (ELEMENTS_MAX, ELEMENTS_MAX + 1):
            for frame in crowded(api, version, count):
                if len(frame) <= LARGE_BYTES:
                    yield f"{name}, {count} elements", frame, count == ELEMENTS_MAX
        for count in (ELEMENTS_MAX + 1, 1 << 20, (1 << 31) - 2):
            for frame in claimed(api, version, count):
                yield f"{name}, {count} claimed", frame, False
        if api.is_request_flexible(version):
            yield f"{name}, tags", tagged(api, version, tags), False


def _mutated_frames(seed: str, count: int) -> Iterator[tuple[str, bytes, bool]]:
    chance = random.Random(seed)
    every = versions()
    for number, (api, version) in enumerate(every):
        mutator = FrameMutator(chance, api, version)
        for _ in range(count * (number + 1) // len(every) - count * number // len(every)):
            yield f"chunk {seed!r}, {api.name} {version}", mutator.frame(), True


def run_chunk(seed: str, count: int) -> Outcome:
    """Decode `count` mutated frames, evenly of all versions."""
    return _run(_mutated_frames(seed, count))


def run_large_frames(_seed: str, _count: int) -> Outcome:
    """Decode the frames at the bounds."""
    return _run(large_frames())


def _run(frames: Iterator[tuple[str, bytes, bool]]) -> Outcome:
    outcome = Outcome()
    for where, frame, may_be_taken in frames:
        _judge(frame, where, outcome, may_be_taken=may_be_taken)
    outcome.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return outcome


def _begin() -> None:
    """Compile all codecs, then bound the memory of this process."""
    os.nice(NICENESS)
    for api, version in versions():
        codec_of(api.request_type, version)
    size = psutil.Process().memory_info().vms + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def chunks(seed: int, inputs: int) -> Sequence[tuple[str, int]]:
    """Seed and size of each chunk."""
    return [
        (f"{seed}:{number}", min(CHUNK, inputs - number * CHUNK))
        for number in range((inputs + CHUNK - 1) // CHUNK)
    ]


def run(inputs: int, seed: int) -> Iterator[Outcome]:
    """Decode so many mutated frames, and those at the bounds; yield the sum so far."""
    total = Outcome()
    context = multiprocessing.get_context("spawn")
    with context.Pool(initializer=_begin) as pool:
        large = pool.apply_async(run_large_frames, ("", 0))
        for one in pool.imap_unordered(_chunk, chunks(seed, inputs)):
            total.add(one)
            yield total
        total.add(large.get())
    yield total


def _chunk(one: tuple[str, int]) -> Outcome:
    return run_chunk(*one)
