"""Options and reports of benchmarks: results, the machine, the table, JSON and the plot."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from raftlog.cluster.manifest import Flush
from raftlog.workloads.latencies import Latencies

RATIO_MAX = 1_000.0
"""Most that a plot shows of a figure that is better than its goal."""


COSTS: Final = frozenset(
    ["s", "ms", "microseconds", "ms/MB", "% of a core", "KiB", "MiB", "latency ratio"]
)
"""Units of which less is better. Of rates and other ratios more is better."""


RANKS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a benchmark."""

    flush: Flush = "sync"
    runs: int = 3
    scale: float = 1.0
    trials: int = 30
    gigabytes: float = 1.0
    kafka_classpath: str | None = None
    """The classpath of Apache Kafka, to be measured beside."""


@dataclass(slots=True)
class Result:
    """One figure: every run of a measurement, and the goal."""

    name: str
    unit: str
    runs: list[float] = field(default_factory=list)
    goal: float | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def lower_is_better(self) -> bool:
        """Whether the unit is a cost."""
        return self.unit in COSTS

    @property
    def median(self) -> float:
        """The median of the runs, which counts."""
        return statistics.median(self.runs)

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches the goal; None without one."""
        if self.goal is None:
            return None
        return self.median <= self.goal if self.lower_is_better else self.median >= self.goal


class Percentiles:
    """Figures of the same latencies, one for each rank with its goal."""

    def __init__(
        self,
        name: str,
        goals: Mapping[str, float | None],
        parameters: Mapping[str, Any] | None = None,
        *,
        unit: Literal["ms", "s"] = "ms",
    ) -> None:
        """`name` has braces in the place of the rank, such as p50, p99.9 or max."""
        self._ranks = {
            rank: Result(name.format(rank), unit, goal=goal, parameters=dict(parameters or {}))
            for rank, goal in goals.items()
        }
        self._scale = {"ms": 1.0, "s": 1e-3}[unit]

    @property
    def results(self) -> list[Result]:
        """The figures, in the order of the goals."""
        return list(self._ranks.values())

    def note(self, latencies: Latencies, **details: Any) -> None:
        """Add a run. All percentiles and the details go to the details of the first figure."""
        for rank, result in self._ranks.items():
            value = latencies.max if rank == "max" else latencies.percentiles[f"{rank[1:]}pct"]
            result.runs.append(value * self._scale)
        first = self.results[0]
        first.details[f"run {len(first.runs)}"] = {**latencies.as_fields("latency"), **details}


def ratio(name: str, ours: Result, theirs: Result, goal: float | None) -> Result:
    """One figure by another, run by run."""
    runs = [own / other for own, other in zip(ours.runs, theirs.runs, strict=True)]
    return Result(name, "ratio", runs=runs, goal=goal)


def distribution(
    name: str,
    values: Sequence[float],
    goals: Mapping[str, float | None],
    parameters: dict[str, Any],
) -> list[Result]:
    """Return a result in seconds for each named rank of all trials, with its goal."""
    ordered = sorted(values)
    last = len(ordered) - 1
    given = {"trials": len(ordered), **parameters}
    found = [
        Result(
            f"{name} {rank}",
            "s",
            runs=[ordered[min(last, int(len(ordered) * RANKS[rank]))]],
            goal=goal,
            parameters=given,
        )
        for rank, goal in goals.items()
    ]
    found[0].details["seconds"] = ordered
    return found


def machine() -> dict[str, Any]:
    """The conditions of the figures: processor, cores, memory, kernel, versions, revision."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [ln for ln in cpuinfo.read_text().splitlines() if ln.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ("raftlog", "aiohttp", "uvloop", "orjson", "msgspec", "aiokafka", "crc32c")
    of_spark = ("pyspark", "pyarrow", "numpy")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version_if_any(name) for name in (*packages, *of_spark)},
        "revision": _revision(),
    }


def _version_if_any(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str:
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() or "unknown"


def print_table(results: Sequence[Result]) -> None:
    """The results as a table: median, range of the runs, goal."""
    width = max(len(result.name) for result in results)
    print(f"\n{'':{width}}  {'median':>12} {'min':>12} {'max':>12} {'goal':>12}  unit")
    for result in results:
        goal = "" if result.goal is None else _number(result.goal)
        mark = {None: "", True: "", False: "  (not reached)"}[result.reached]
        print(
            f"{result.name:{width}}  {_number(result.median):>12} {_number(min(result.runs)):>12} "
            f"{_number(max(result.runs)):>12} {goal:>12}  {result.unit}{mark}"
        )


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def write_json(path: Path, results: Sequence[Result], command: str, flush: str) -> None:
    """Write all results, with the command and machine to measure them again."""
    document = {
        "command": command,
        "flush": flush,
        "machine": machine(),
        "results": [
            {**asdict(result), "lower_is_better": result.lower_is_better, "median": result.median}
            for result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def pyplot() -> ModuleType:
    """Matplotlib's plots, drawn into files."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only plots need it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen

    return plt


def plot(path: Path, results: Sequence[Result]) -> bool:
    """Plot the median by the goal of each result with a goal, on a ratio scale; whether any has."""
    shown = [result for result in results if result.goal is not None]
    if not shown:
        return False
    ratios = [
        # A latency may be 0, by the clock.
        (result.goal or 0) / max(result.median, (result.goal or 0) / RATIO_MAX)
        if result.lower_is_better
        else result.median / (result.goal or 1)
        for result in shown
    ]
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(10, 0.45 * len(shown) + 1.5), layout="constrained")
    colours = ["#2a6f97" if ratio >= 1 else "#c1543c" for ratio in ratios]
    axes.barh([result.name for result in shown], ratios, color=colours)
    for row, (result, ratio) in enumerate(zip(shown, ratios, strict=True)):
        axes.text(ratio, row, f" {_number(result.median)} {result.unit}", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *ratios) * 0.8, max(2.0, *ratios) * 4)
    axes.set_xlabel("times better than its goal (log scale)")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
