"""Random histories of whole clusters: everything may go wrong, nothing acknowledged is lost."""

from __future__ import annotations

from typing import Final

import pytest

from raftlog.metadata.image import MetadataImage
from tests.simulation.node_checker import InvariantError
from tests.simulation.node_histories import replay
from tests.simulation.seeds import digests_of, seeds_of

SEEDS: Final = range(60)
HEAL_S_MAX: Final = 10.0
"""From the last fault until every node serves and every partition takes writes."""


@pytest.mark.parametrize("seed", seeds_of(SEEDS))
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    report = replay(seed)
    assert report.created
    assert report.acknowledged
    assert report.heal_s < HEAL_S_MAX
    assert report.endings == ()


@pytest.mark.parametrize(
    "seed", [3, pytest.param(7, marks=pytest.mark.full), pytest.param(12, marks=pytest.mark.full)]
)
def test_a_seed_replays_under_any_hash_seed(seed: int) -> None:
    assert len(digests_of("tests.simulation.node_histories", seed)) == 1


def test_images_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nondeterministic state machine."""
    made: list[MetadataImage] = []
    monkeypatch.setattr(
        MetadataImage,
        "__setattr__",
        lambda self, name, value: object.__setattr__(
            self,
            name,
            value + (made.append(self) or len(made)) if name == "created_ms" else value,  # type: ignore[func-returns-value]
        ),
    )
    with pytest.raises(InvariantError, match="another image"):
        replay(0)
