"""Machinery of the whole suite: order by durations, patient property tests, quick collector.

`scripts/test` spreads the modules over processes. The longest module comes first, so that the
processes finish together. `tests/durations.json` keeps the seconds of every module that takes at
least a second. `scripts/test --full --record-durations` writes the file again.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests import examples
from tests.garbage import exempt_existing

DURATIONS: Final = Path(__file__).with_name("durations.json")
RECORDED_S_MIN: Final = 1.0
"""Shortest duration of a module in the file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records durations."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"Write the seconds of each module that ran to {DURATIONS.name}.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set up property tests. Record durations where the results of all processes arrive."""
    examples.load_profile(quick=config.option.markexpr == "not full")
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(), "duration-recorder")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collections, and exempt them from later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        exempt_existing()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest module first if the tests are spread over processes."""
    if hasattr(config, "workerinput"):
        durations = recorded_durations()
        items.sort(key=lambda item: durations.get(module_of(item.nodeid), 0.0), reverse=True)


def module_of(nodeid: str) -> str:
    """Return the path of the module that holds a test."""
    return nodeid.split("::", 1)[0]


def recorded_durations() -> dict[str, float]:
    """Return the recorded seconds of the long modules."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    return durations


class DurationRecorder:
    """Sums the durations of each module and writes them to the file at the end."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its module."""
        self._seconds[module_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the modules that ran. The others keep their recorded durations."""
        merged = recorded_durations() | self._seconds
        kept = {
            module: round(seconds, 1)
            for module, seconds in sorted(merged.items())
            if seconds >= RECORDED_S_MIN and Path(module).exists()
        }
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
