"""Verdicts over known histories, files and gaps."""

from __future__ import annotations

import itertools
from pathlib import Path

from raftlog.record.codec import BatchBuilder
from raftlog.record.header import BatchHeader, parse_header
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.soak.nemesis import Fault
from tests.soak.recording import Recorder, Steps, operations, partitions_in
from tests.soak.records import disasters
from tests.soak.verdict import compare_files, judge, longest_gap, sequence_faults
from tests.verification.log_history import FinalRead, Send

S = 1_000_000_000


def ack(recorder: Recorder, offset: int, at_s: float, partition: str = "t-0") -> None:
    at = int(at_s * S)
    recorder.add(
        Send(
            partition=partition,
            producer="p",
            values=(f"v{offset}",),
            invoked=at - 1,
            completed=at,
            outcome="ok",
            offset=offset,
        )
    )


def history(directory: Path, acks_s: list[float], *, lost: int | None = None) -> Path:
    """Acknowledged at these times, and read at the end, but for one."""
    recorder = Recorder(directory, "w")
    for offset, at_s in enumerate(acks_s):
        ack(recorder, offset, at_s)
    records = tuple((n, f"v{n}") for n in range(len(acks_s)) if n != lost)
    recorder.add(FinalRead(partition="t-0", node="1", start=0, end=len(acks_s), records=records))
    recorder.close()
    return directory


def fault(struck_s: float, healed_s: float, whole_s: float, kind: str = "kill") -> Fault:
    return Fault(kind, (1,), int(struck_s * S), int(healed_s * S), int(whole_s * S))


def test_steps_grow_even_within_a_tick_of_the_clock() -> None:
    step = Steps()
    steps = [step() for _ in range(1000)]
    assert all(early < late for early, late in itertools.pairwise(steps))


def test_histories_are_kept_by_partition_and_client(tmp_path: Path) -> None:
    for client in ("a", "b"):
        recorder = Recorder(tmp_path, client)
        ack(recorder, 0, 1.0, "t-0")
        ack(recorder, 0, 1.0, "t-1")
        recorder.close()
    assert partitions_in(tmp_path) == ["t-0", "t-1"]
    assert len(list(operations(tmp_path, "t-1"))) == 2


def test_a_lost_record_is_an_anomaly(tmp_path: Path) -> None:
    assert judge(history(tmp_path / "whole", [1, 2, 3]), []).anomalies == []
    found = judge(history(tmp_path / "lacking", [1, 2, 3], lost=1), [])
    assert any("lost write" in anomaly for anomaly in found.anomalies)
    assert (found.acknowledged, found.records_read) == (3, 2)


def headers(*batches: tuple[int, int, int]) -> list[BatchHeader]:
    """Batches of producer 7: epoch, first sequence, number of records."""
    found = []
    for epoch, sequence, count in batches:
        builder = BatchBuilder(
            producer_id=ProducerId(7), producer_epoch=ProducerEpoch(epoch), base_sequence=sequence
        )
        for _ in range(count):
            builder.append(0, None, b"x")
        found.append(parse_header(builder.build()))
    return found


def test_sequences_go_on_within_an_epoch_and_begin_again_with_the_next() -> None:
    sound = [(0, 0, 2), (0, 2, 3), (4, 0, 1), (4, 1, 1)]
    assert list(sequence_faults(headers(*sound))) == []
    for wrong in [(4, 1, 1), (4, 3, 1), (0, 5, 1), (5, 1, 1)]:
        assert len(list(sequence_faults(headers(*sound, wrong)))) == 1, wrong


def test_a_gap_belongs_to_the_fault_in_which_it_begins(tmp_path: Path) -> None:
    faults = [fault(2, 4, 5), fault(8, 9, 10, "pause")]
    found = judge(history(tmp_path, [1, 1.9, 4.5, 6, 7, 8.5, 11, 12]), faults)
    assert found.gap_s == {"kill": 2.5, "pause": 2.5}
    assert found.resume_s == {"kill": 0.5, "pause": 2.0}
    assert found.calm_gap_s == 1.0
    assert found.anomalies == []


def test_what_a_next_fault_costs_is_not_held_against_the_one_before() -> None:
    assert longest_gap([0, 100, 900], 50, 200, 300) == 200
    assert longest_gap([0, 100, 900], 50, 200, 1000) == 800


def test_a_partition_that_does_not_resume_in_time_is_an_anomaly(tmp_path: Path) -> None:
    found = judge(history(tmp_path, [1, 15.5, 16]), [fault(2, 4, 5)])
    assert any("acknowledged nothing for 11.5 s" in anomaly for anomaly in found.anomalies)


def replica(directory: Path, *values: bytes) -> Path:
    """A node's data directory with one replica of one batch for each value."""
    path = directory / "replicas" / "topic" / "0"
    path.mkdir(parents=True)
    batches = b""
    for offset, value in enumerate(values):
        builder = BatchBuilder()
        builder.append(1, None, value, [])
        batch = builder.build()
        batch[:8] = offset.to_bytes(8, "big")
        batches += batch
    half = len(batches) // len(values)
    (path / f"{0:020}.log").write_bytes(batches[:half])
    (path / f"{1:020}.log").write_bytes(batches[half:])
    return directory


def test_replicas_that_differ_are_found_whatever_their_segments(tmp_path: Path) -> None:
    first = replica(tmp_path / "1", b"a", b"b")
    second = replica(tmp_path / "2", b"a", b"b")
    logs = sorted((second / "replicas" / "topic" / "0").glob("*.log"))
    logs[0].write_bytes(logs[0].read_bytes() + logs[1].read_bytes())
    logs[1].unlink()
    assert compare_files({1: first, 2: second}) == []
    third = replica(tmp_path / "3", b"a", b"c")
    (found,) = compare_files({1: first, 2: second, 3: third})
    assert "node 3 differs from offset 1" in found


def test_a_traceback_in_a_nodes_log_is_a_disaster(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_text("INFO: well\nTraceback (most recent call last):\n")
    assert disasters([log]) == ["Traceback (most recent call last):"]
