"""Clusters of fake nodes, so only the manager is tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raftlog.cluster import local

FAKE = Path(__file__).with_name("fake_serve.py")


@pytest.fixture
def fake_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`raftlog serve` is fake_serve.py from now on."""
    monkeypatch.setattr(local, "SERVE", (sys.executable, "-S", str(FAKE)))
