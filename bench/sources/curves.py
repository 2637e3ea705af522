"""Curves of claims: a figure over replicas, bytes or settings, one curve for each way. The plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.report import COSTS, Result, pyplot

CURVE: Final = "curve"
"""The key of a curve in the details of a result."""


class Panel(NamedTuple):
    """One plot."""

    title: str
    x_label: str
    unit: str
    is_log_x: bool = False
    is_linear_y: bool = False


@dataclass(slots=True)
class Curves:
    """The curves of a panel, while they are measured."""

    panel: Panel
    runs: dict[str, dict[float, list[float]]] = field(default_factory=dict)
    """By way and x."""

    def note(self, way: str, x: float, value: float) -> None:
        """Note one run."""
        self.runs.setdefault(way, {}).setdefault(x, []).append(value)

    def median(self, way: str, x: float) -> float:
        """The median of the runs at one place. Raises KeyError."""
        return statistics.median(self.runs[way][x])

    def add(self, way: str, x: float, value: float) -> None:
        """Note one run, and print the figure."""
        self.note(way, x, value)
        panel = self.panel
        print(
            f"   {panel.title}, {x:,g} {panel.x_label}, {way}: {value:,.2f} {panel.unit}",
            flush=True,
        )

    def results(self) -> list[Result]:
        """A result for each way: its figure is that of the largest x, the curve is a detail."""
        panel = self.panel
        found = []
        for way, by_x in self.runs.items():
            last = max(by_x)
            name = f"claim: {panel.title}, {last:,g} {panel.x_label}, {way}"
            result = Result(name, panel.unit, runs=by_x[last])
            result.details[CURVE] = {
                "panel": panel._asdict(),
                "way": way,
                "x": list(by_x),
                "median": [self.median(way, x) for x in by_x],
                "runs": list(by_x.values()),
            }
            found.append(result)
        return found


def plot_curves(path: Path, results: Sequence[Result]) -> bool:
    """Plot all panels with curves among the results; whether there are any."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if CURVE in result.details:
            curve = result.details[CURVE]
            panels.setdefault(curve["panel"]["title"], []).append(curve)
    if not panels:
        return False
    plt, rows = pyplot(), (len(panels) + 1) // 2
    figure, grid = plt.subplots(
        rows, 2, figsize=(13, 4.2 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        for curve in curves:
            axes.plot(curve["x"], curve["median"], marker="o", markersize=4, label=curve["way"])
        panel = curves[0]["panel"]
        axes.set_title(f"{title} ({'lower' if panel['unit'] in COSTS else 'higher'} is better)")
        axes.set_xlabel(panel["x_label"])
        axes.set_ylabel(panel["unit"])
        if not panel["is_linear_y"]:
            axes.set_yscale("log")
        if panel["is_log_x"]:
            axes.set_xscale("log")
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
