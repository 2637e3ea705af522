"""The attack's own parts: each bound can break, zero work fails, and inputs are requests."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.http.app import described_routes
from raftlog.http.openapi import describe
from raftlog.record.batch import check_batch
from raftlog.record.compression import Compression
from raftlog.record.errors import LogError
from raftlog.record.frames import parse_produce_frames
from raftlog.record.header import parse_header
from raftlog.record.types import Buffer
from raftlog.rest.routes import ROUTES
from tests.attack.attacker import BEGUN_AT_ONCE, Attack
from tests.attack.attacks import ATTACKS
from tests.attack.inputs import (
    MIB,
    Mutator,
    batch_bomb,
    foreign_requests,
    garbage,
    header_floods,
    lying_batch,
    many_partitions,
    opening,
    stranger_batch,
)
from tests.attack.verdict import (
    HOLDS_SPARE,
    P99_FLOOR_S,
    RSS_BYTES_MAX,
    Observed,
    Operation,
    Work,
    findings,
    may_be_the_machine,
    p99,
    parse,
)
from tests.examples import examples


def operations(seconds: float, count: int = 200) -> list[Operation]:
    return [Operation("send", float(n), seconds) for n in range(count)]


CALM = Observed("calm", operations(0.02), 1, 10.0, 0, 0, [], 0, Work({"200": 9}))
HELD = replace(CALM, name="bombs", least={"200": 5})


def test_an_attack_that_nothing_suffers_from_is_held() -> None:
    assert findings(CALM, HELD) == []


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ({"ended": [2]}, "ended: nodes 2"),
        ({"elections": 1}, "elected 1 times"),
        ({"internal_errors": 3}, "3 answers of status 500"),
        ({"loop_holds": HOLDS_SPARE + 1}, "processor time"),
        ({"leftovers": ["3 connections at node 1"]}, "left over: 3 connections"),
        ({"rss_bytes": RSS_BYTES_MAX + 1}, "MiB of memory"),
        ({"operations": [*operations(0.02), Operation("rest", 1.0, None, "Boom()")]}, "Boom()"),
        ({"operations": []}, "did nothing"),
        ({"operations": operations(3.1 * P99_FLOOR_S)}, "p99"),
        ({"work": None}, "without its summary"),
        ({"work": Work({})}, "0 of 200 (at least 5)"),
        ({"work": Work({"200": 4})}, "4 of 200 (at least 5)"),
        ({"work": Work({"200": 5, "breaches": 1})}, "1 answers that a bound"),
    ],
)
def test_every_bound_can_break(broken: dict[str, Any], word: str) -> None:
    (found,) = findings(CALM, replace(HELD, **broken))
    assert word in found


def test_a_machine_that_is_slow_without_an_attack_excuses_as_much_under_one() -> None:
    calm = replace(CALM, operations=operations(0.4), loop_holds=2, seconds=10.0)
    assert findings(calm, replace(HELD, operations=operations(1.1), loop_holds=3)) == []
    attacked = replace(HELD, operations=operations(1.3), loop_holds=20, seconds=10.0)
    assert len(findings(calm, attacked)) == 2


def test_beside_other_tests_a_p99_of_a_second_is_the_bound() -> None:
    assert findings(CALM, replace(HELD, operations=operations(0.95)), slack=5.0) == []
    (found,) = findings(CALM, replace(HELD, operations=operations(1.05)), slack=5.0)
    assert "p99" in found


@pytest.mark.parametrize(("least", "slack", "enough"), [(50, 5.0, 10), (7, 5.0, 2), (3, 5.0, 1)])
def test_slack_divides_the_least_work_down_to_a_count_of_1(
    least: int, slack: float, enough: int
) -> None:
    done = replace(HELD, least={"200": least}, work=Work({"200": enough}))
    assert findings(CALM, done, slack) == []
    assert f"{enough} of 200 (at least {least})" in findings(CALM, done)[0]
    (found,) = findings(CALM, replace(done, work=Work({"200": enough - 1})), slack)
    assert f"{enough - 1} of 200 (at least {enough})" in found


def test_only_findings_of_time_may_be_the_machines() -> None:
    slow = replace(HELD, operations=operations(3.1 * P99_FLOOR_S), elections=1, work=Work({}))
    assert may_be_the_machine(findings(CALM, slow))
    for broken in (
        replace(slow, internal_errors=1),
        replace(slow, loop_holds=9),
        replace(slow, rss_bytes=RSS_BYTES_MAX + 1),
    ):
        assert not may_be_the_machine(findings(CALM, broken))


def test_every_attack_names_the_least_of_its_work() -> None:
    assert all(kind.least and min(kind.least.values()) > 0 for kind in ATTACKS.values())


@pytest.fixture
def attack() -> Attack:
    """An attack with much time, which the first step of each test takes away."""
    return Attack("127.0.0.1", 0, 3600.0, random.Random(1))


async def test_no_loop_and_no_step_starts_after_the_deadline(attack: Attack) -> None:
    async def work(_number: int) -> None:
        attack.counts["steps"] += 1
        attack.deadline = 0.0

    async with asyncio.timeout(10):
        await attack.repeat(work, 1 << 40)
    assert attack.counts == {"steps": 1}


async def test_a_step_that_takes_the_cancellation_with_it_is_the_last_of_its_loop(
    attack: Attack,
) -> None:
    async def work(_number: int) -> None:
        attack.counts["steps"] += 1
        assert attack.counts["steps"] == 1
        attack.deadline = 0.0
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise TimeoutError from None

    await attack.repeat(work, BEGUN_AT_ONCE)
    assert attack.counts == {"steps": 1, "broken": 1}


def test_operations_are_parsed_without_a_torn_last_line() -> None:
    lines = ["send 1.5 0.25\n", "rest 2.0 failed ClientError('a b')\n", "read 3.0 0."]
    assert list(parse(lines)) == [
        Operation("send", 1.5, 0.25),
        Operation("rest", 2.0, None, "ClientError('a b')"),
    ]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_p99_is_reached_by_at_most_one_in_a_hundred(seconds: list[float]) -> None:
    found = p99(seconds)
    assert found in seconds
    assert sum(one > found for one in seconds) <= len(seconds) / 100


def test_p99_of_nothing_is_no_number() -> None:
    assert math.isnan(p99([]))


DOCUMENT = json.loads(msgspec.json.encode(describe(described_routes(ROUTES))))


_HEAD = re.compile(rb"[A-Z]+ /[!-~]* HTTP/1\.1\r\n(?:[A-Za-z0-9-]+:[ !-~]*\r\n)+\r\n")


def is_request(head: bytes) -> bool:
    """Whether the head is a request's by RFC 9112."""
    return _HEAD.fullmatch(head) is not None


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_requests_are_requests(seed: int) -> None:
    mutator = Mutator(DOCUMENT, random.Random(seed))
    for _ in range(5):
        request = mutator.request()
        assert is_request(request.head()), request


def test_mutations_reach_every_operation() -> None:
    mutator = Mutator(DOCUMENT, random.Random(1))
    methods = {mutator.request().method for _ in range(3_000)}
    assert methods == {"GET", "POST", "PUT", "PATCH", "DELETE"}


@given(st.integers(0, 2**32))
def test_noise_and_openings_are_bytes(seed: int) -> None:
    rng = random.Random(seed)
    assert garbage(rng)
    assert is_request(opening(rng, "quorum"))


def is_sound(data: Buffer) -> bool:
    return check_batch(data, 0, parse_header(data))


@pytest.mark.parametrize("codec", [one for one in Compression if one is not Compression.NONE])
def test_bombs_are_sound_batches_that_the_node_takes(codec: Compression) -> None:
    bomb = batch_bomb(codec, MIB, 1000)
    assert len(bomb) < MIB // 8
    assert is_sound(bomb)
    assert is_sound(lying_batch(codec, MIB))


def test_made_up_producers_send_the_first_batch_of_a_new_one() -> None:
    rng = random.Random(1)
    ids = set()
    for _ in range(20):
        (frame,) = list(parse_produce_frames(stranger_batch(rng).body, frames_max=1))
        assert is_sound(frame.data)
        ids.add(parse_header(frame.data).producer_id)
    assert len(ids) == 20
    assert min(ids) >= 0


def test_floods_and_foreign_pages_are_requests() -> None:
    assert all(request.head().endswith(b"\r\n\r\n") for request in header_floods())
    assert all(is_request(request.head()) for request in foreign_requests())
    bodies = [request.body for request in many_partitions()]
    assert max(map(len, bodies)) < 32 * MIB
    with pytest.raises(LogError):
        list(parse_produce_frames(bodies[-2], frames_max=10_000))
