"""Machinery of the whole suite: order by durations, patient property tests, quick collector.

`scripts/test` spreads the modules over processes. Modules that wait come first, since others use
the processor in that time. Then the longest module comes first, so that the processes finish
together. `tests/durations.json` keeps the seconds and the seconds of processor of every module that
takes at least a second. `scripts/test --full --record-durations` writes the file again.
"""

from __future__ import annotations

import gc
import json
import os
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
    if config.getoption("--record-durations"):
        config.pluginmanager.register(ProcessorClock(), "processor-clock")
        if not hasattr(config, "workerinput"):
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
    """Order the modules by their durations if the tests are spread over processes."""
    if hasattr(config, "workerinput"):
        durations = recorded_durations()
        items.sort(key=lambda item: _rank(*durations.get(module_of(item.nodeid), (0.0, 0.0))))


def _rank(seconds: float, processor_s: float) -> tuple[bool, float]:
    """Order of a module: those that wait for half of their time or more, then by their length."""
    return processor_s > seconds / 2 or not seconds, -seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Free what a module leaves behind, and exempt the rest from later collections."""
    result = yield
    if nextitem is None or module_of(nextitem.nodeid) != module_of(item.nodeid):
        exempt_existing()
    return result


def module_of(nodeid: str) -> str:
    """Return the path of the module that holds a test."""
    return nodeid.split("::", 1)[0]


def recorded_durations() -> dict[str, tuple[float, float]]:
    """Return the recorded seconds and seconds of processor of the long modules."""
    return {module: (row[0], row[1]) for module, row in json.loads(DURATIONS.read_text()).items()}


class ProcessorClock:
    """Measures the processor time of each phase of a test, with that of its children."""

    def __init__(self) -> None:
        self._before_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the processor time since the last phase into the report of this phase."""
        report = yield
        now_s = sum(os.times()[:4])
        report.user_properties = [("processor_s", now_s - self._before_s)]
        self._before_s = now_s
        return report


class DurationRecorder:
    """Sums the durations of each module and writes them to the file at the end."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its module."""
        row = self._seconds[module_of(report.nodeid)]
        row[0] += report.duration
        row[1] += sum(seconds for name, seconds in report.user_properties if name == "processor_s")

    def pytest_sessionfinish(self) -> None:
        """Write the modules that ran. The others keep their recorded durations."""
        merged = recorded_durations() | self._seconds
        kept = {
            module: [round(seconds, 1) for seconds in row]
            for module, row in sorted(merged.items())
            if max(row) >= RECORDED_S_MIN and Path(module).exists()
        }
        rows = ",\n".join(
            f"{json.dumps(module)}: {json.dumps(row)}" for module, row in kept.items()
        )
        DURATIONS.write_text(f"{{\n{rows}\n}}\n")
