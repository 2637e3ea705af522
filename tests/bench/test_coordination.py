"""The choice of parts of `scripts/bench groups|transactions`."""

from __future__ import annotations

from bench.main import PARTS, choose_parts


def test_parts_of_all_suites_have_names_of_their_own() -> None:
    names = [part for parts in PARTS.values() for part in parts]
    assert len(names) == len(set(names))
    own = [*PARTS["groups"], *PARTS["transactions"]]
    assert choose_parts(["coordinator-kill"], own) == ["coordinator-kill"]
