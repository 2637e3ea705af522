"""Fixtures: one real node for the logs of states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from bench.node import LoneNode

_names = count(1)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """One real node for all tests."""
    process = LoneNode(tmp_path_factory.mktemp("node") / "data", flush="async")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def servers(node: LoneNode) -> str:
    """Its address."""
    return node.address


@pytest.fixture
def name() -> str:
    """A state's name, not used before."""
    return f"state-{next(_names)}"
