"""Real nodes: processes of their own, on loopback, with a data directory each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.node import LoneNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    """A running node with an empty log."""
    process = LoneNode(tmp_path / "data", flush="sync")
    process.start()
    try:
        yield process
    finally:
        process.stop()
