"""The page of the sources names each test of this package, and each part of the benchmark."""

from __future__ import annotations

import re
from pathlib import Path

from bench.main import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"


def test_each_test_of_a_source_is_on_the_page() -> None:
    named = set(re.findall(r"\btest_\w+", PAGE.read_text(encoding="utf-8")))
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            tests = set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
            assert tests
            assert {path.stem} | tests <= named


def test_each_figure_of_a_source_is_on_the_page() -> None:
    named = set(re.findall(r"`(claim-\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named == set(PARTS["sources"])
