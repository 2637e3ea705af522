"""Random histories of whole clusters: everything may go wrong, nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from raftlog.metadata.image import MetadataImage
from tests.simulation.node_checker import InvariantError
from tests.simulation.node_histories import replay
from tests.simulation.seeds import seeds_of

SEEDS: Final = range(60)
HEAL_S_MAX: Final = 10.0
"""From the last fault until every node serves and every partition takes writes."""
DIGEST_SEEDS: Final = ("3", "7", "12")


@pytest.mark.parametrize("seed", seeds_of(SEEDS))
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    report = replay(seed)
    assert report.created
    assert report.acknowledged
    assert report.heal_s < HEAL_S_MAX
    assert report.endings == ()


def test_a_seed_replays_under_any_hash_seed() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *DIGEST_SEEDS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(done.stdout.split())
    assert len(digests[0]) == len(DIGEST_SEEDS)
    assert digests[0] == digests[1]
    assert replay(int(DIGEST_SEEDS[0])).digest == digests[0][0]


PROGRAM: Final = """
import sys
from tests.simulation.node_histories import replay
from tests.simulation.seeds import seeds_of
for seed in sys.argv[1:]:
    print(replay(int(seed)).digest)
"""


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
