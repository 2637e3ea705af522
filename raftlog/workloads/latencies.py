"""Latencies in the fields of the OpenMessaging Benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LATENCY_PERCENTILES: Final = (50.0, 75.0, 95.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies in milliseconds, with exact percentiles."""

    avg: float
    percentiles: dict[str, float]
    max: float
    count: int

    @classmethod
    def from_seconds(cls, samples: Sequence[float]) -> Latencies:
        """Summarise samples given in seconds. Raises ValueError without any."""
        ordered = sorted(sample * 1000 for sample in samples)
        if not ordered:
            raise ValueError("no samples to summarise")
        last = len(ordered) - 1
        return cls(
            avg=statistics.fmean(ordered),
            percentiles={
                f"{p:g}pct": ordered[min(last, int(len(ordered) * p / 100))]
                for p in LATENCY_PERCENTILES
            },
            max=ordered[-1],
            count=len(ordered),
        )

    def as_fields(self, prefix: str) -> dict[str, float]:
        """Flat fields such as `publishLatency99pct`, the names of OpenMessaging's result files."""
        fields = {f"{prefix}Avg": self.avg, f"{prefix}Max": self.max}
        fields.update({f"{prefix}{name}": value for name, value in self.percentiles.items()})
        return fields
