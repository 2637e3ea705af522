from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import quorum
from bench.quorum import failover_results
from tests.bench.fakes import fake_cluster


def test_each_trial_ends_with_the_first_acknowledgement_and_a_whole_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "CALM_S", (0.0, 0.1))
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        seconds = quorum.failover_trials(cluster, 3, seed=1)
        assert all(node.is_running for node in cluster.nodes.values())
    assert len(seconds) == 3
    assert all(0 < second < quorum.PROBES_MAX * quorum.PROBE_INTERVAL_S for second in seconds)


def test_an_unanswered_probe_acknowledges_nothing() -> None:
    async def probe() -> bool:
        acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        await quorum._probe("127.0.0.1:1", 1, acknowledged)
        return acknowledged.done()

    assert not asyncio.run(probe())


def test_the_distribution_is_held_against_the_goals() -> None:
    p50, p90, p99, longest = failover_results([0.1] * 60 + [0.5] * 35 + [2.0] * 5)
    assert (p50.median, p50.reached) == (0.1, True)
    assert (p90.median, p90.reached) == (0.5, None)
    assert (p99.median, p99.reached) == (2.0, False)
    assert longest.median == 2.0
    assert p50.parameters["trials"] == 100
