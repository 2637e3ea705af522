"""The pages about faults and sources name tests and planted bugs that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.data.ingredients import Ingredient
from tests.simulation.data.planted_bugs import MISTAKES

ROOT = Path(__file__).parents[3]
FAULTS = Path(__file__).with_name("FAULTS.md")
TEN_MISTAKES = ROOT / "docs" / "decisions" / "ten-mistakes.md"
SOURCES = ROOT / "docs" / "sources.md"


@pytest.fixture(scope="module")
def known_tests() -> set[str]:
    """All test functions and modules."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names.add(path.stem)
        names.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    return names


@pytest.mark.parametrize("page", [FAULTS, TEN_MISTAKES, SOURCES], ids=lambda page: page.name)
def test_a_named_test_exists(page: Path, known_tests: set[str]) -> None:
    named = set(re.findall(r"\btest_\w+", page.read_text(encoding="utf-8")))
    # `test_row_NN` and `test_rows_...` stand for many.
    assert named - known_tests - {"test_row_NN"} == set()


def test_every_planted_bug_is_on_the_page() -> None:
    page = TEN_MISTAKES.read_text(encoding="utf-8")
    parts = re.split(r"^\*\*(\d+)\. ", page, flags=re.MULTILINE)
    planted = {
        int(number): set(re.findall(r"\*([^*]+)\*", text.partition("Planted: ")[2]))
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    for mistake in MISTAKES:
        assert mistake.what in planted[mistake.number]


def test_every_row_has_a_test_or_says_not_yet() -> None:
    rows = re.findall(
        r"^\| (\d+) \|.*\| (.*) \|$", FAULTS.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [int(number) for number, _ in rows] == list(range(1, 28))
    for _, tests in rows:
        assert "test_" in tests or "not yet" in tests


def test_every_ingredient_is_on_the_page() -> None:
    table = re.findall(r"^\| (`.*`) \|", FAULTS.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert named == {each.value for each in Ingredient}
