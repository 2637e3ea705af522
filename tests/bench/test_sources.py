"""The claims of the sources: curves, promises, the sweep of linger."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from bench.main import PARTS
from bench.report import plot
from bench.sources.claims import at_rate
from bench.sources.curves import CURVE, Curves, Panel, plot_curves
from bench.sources.hand_replicas import ByHand, running_replicas
from bench.sources.linger import LINGERS_MS, SPEED, Sweep
from bench.sources.promises import ACKS, FLUSHES, MIN_ISRS, death_curves, print_promises

PANEL: Final = Panel("puts", "replicas", "puts/s")


def test_the_suite_is_registered() -> None:
    assert PARTS["sources"]
    assert all(name.startswith("claim-") for name in PARTS["sources"])
    assert not [name for name in PARTS["state"] if name.startswith("claim-")]


def test_a_curve_has_the_median_of_each_place() -> None:
    curves = Curves(PANEL)
    for value in (1.0, 9.0, 2.0):
        curves.add("the log", 1, value)
        curves.add("the log", 5, 10 * value)
    [result] = curves.results()
    assert result.runs == [10.0, 90.0, 20.0]
    assert result.details[CURVE]["x"] == [1, 5]
    assert result.details[CURVE]["median"] == [2.0, 20.0]


async def test_latencies_at_a_rate_count_from_the_due_time() -> None:
    """A stop of the event loop delays the calls that were due meanwhile, and their latencies."""
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.05)  # noqa: ASYNC251 (the stop)

    found = await at_rate(call, 1_000, 0.05)
    assert found.count == calls == 50
    assert found.percentiles["50pct"] > 5


def test_a_plot_needs_a_curve_and_takes_zeros_on_a_linear_scale(tmp_path: Path) -> None:
    assert not plot_curves(tmp_path / "none.png", [])
    assert not plot(tmp_path / "none.png", death_curves().results()), "no promise has a goal"
    assert plot_curves(tmp_path / "deaths.png", death_curves().results())
    assert (tmp_path / "deaths.png").stat().st_size > 0


def test_replicas_by_hand_apply_each_put_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async def write() -> None:
        primary = ByHand([one.address for one in running], is_side_by_side=True)
        for number in range(3):
            await primary.put([b"%d" % number, b"x"])
        primary.close()
        for one in running:
            assert await one.values() == [b"0", b"x", b"1", b"x", b"2", b"x"]

    with running_replicas(tmp_path, 2, is_flushed=True) as running:
        asyncio.run(write())


def test_the_table_has_a_line_for_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    curves = Curves(PANEL)
    for acks in ACKS:
        for flush in FLUSHES:
            for min_isr in MIN_ISRS:
                curves.note(f"acks={acks}, flush={flush}", min_isr, 1.25)
    print_promises(curves, curves)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(ACKS) * len(FLUSHES) * len(MIN_ISRS)
    assert lines[-1].split() == ["all", "3", "async", "1.25", "1.25", "0", "0", "2"]


def test_the_trade_has_a_point_for_each_linger() -> None:
    sweep = Sweep()
    for linger_ms in LINGERS_MS:
        sweep.rate.note(SPEED, linger_ms, 1_000 + linger_ms)
        sweep.latency.note("p50", linger_ms, 1 + linger_ms)
        sweep.latency.note("p99", linger_ms, 5 + linger_ms)
    p50, p99 = (one.details[CURVE] for one in sweep.trade().results())
    assert p50["x"] == [1 + linger_ms for linger_ms in LINGERS_MS]
    assert p99["x"] == [5 + linger_ms for linger_ms in LINGERS_MS]
    assert p50["median"] == p99["median"] == [1_000 + linger_ms for linger_ms in LINGERS_MS]
