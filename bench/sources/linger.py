"""linger_ms swept: the rate and the processor time that grouping buys, and the latency it costs.

The claim is that of the DESOSA analysis (2021): batches raise throughput at the cost of latency.
The client groups without linger, too: a batch gathers while the batch before is under way.
"""

from __future__ import annotations

from typing import Final

from bench.cluster import (
    Cluster,
    Meter,
    publish_at,
    run_workload,
    running_cluster,
)
from bench.loads import awaited_sends
from bench.report import Options, Result
from bench.sources.curves import Curves, Panel
from raftlog.workloads.latencies import Latencies

LINGERS_MS: Final = (0, 1, 2, 5, 10, 20, 50)
RECORD_BYTES: Final = 100
RECORDS: Final = 150_000
RECORDS_MIN: Final = 20_000
"""The window of `awaited_sends`."""
RATE: Final = 1_000
LATENCY_S: Final = 1.5
LATENCY_S_MIN: Final = 0.5
WARM_UP_S: Final = 0.3
PERCENTILES: Final = {"p50": "50pct", "p99": "99pct"}
SPEED: Final = "one client at full speed"


class Sweep:
    """The figures over linger_ms."""

    def __init__(self) -> None:
        x_label = "ms linger"
        self.rate = Curves(Panel("rate, sends awaited later", x_label, "records/s"))
        self.latency = Curves(Panel(f"publish, {RATE:,}/s", x_label, "ms"))
        self.cost = Curves(
            Panel(f"processor time of a record, {RATE:,}/s", x_label, "microseconds")
        )

    async def measure_rate(
        self, cluster: Cluster, topic: str, linger_ms: int, scale: float
    ) -> None:
        """One run at full speed."""
        count = max(RECORDS_MIN, int(RECORDS * scale))
        seconds = await awaited_sends(
            cluster.servers, topic, RECORD_BYTES, count, linger_ms=linger_ms
        )
        self.rate.add(SPEED, linger_ms, count / seconds)

    async def measure_latency(
        self, cluster: Cluster, topic: str, linger_ms: int, scale: float
    ) -> None:
        """One run at RATE."""
        lasts_s = max(LATENCY_S_MIN, LATENCY_S * scale)
        meter = Meter(cluster)
        settings = {"record_bytes": RECORD_BYTES, "linger_ms": linger_ms, "warm_up_s": WARM_UP_S}
        samples = await publish_at(cluster, topic, RATE, lasts_s, **settings)
        used = meter.used()
        found = Latencies.from_seconds(samples.publish)
        for way, key in PERCENTILES.items():
            self.latency.add(way, linger_ms, found.percentiles[key])
        records = RATE * (lasts_s + WARM_UP_S)
        nodes = sum(sum(times) for name, times in used.items() if name != "client")
        self.cost.add("three nodes", linger_ms, nodes / records * 1e6)
        self.cost.add("client", linger_ms, sum(used["client"]) / records * 1e6)

    def trade(self) -> Curves:
        """The rate of each linger against the latency of the same linger."""
        curves = Curves(
            Panel(
                "rate against latency, a point for each linger", "ms publish latency", "records/s"
            )
        )
        for linger_ms in self.rate.runs[SPEED]:
            rate = self.rate.median(SPEED, linger_ms)
            for way in PERCENTILES:
                curves.add(way, self.latency.median(way, linger_ms), rate)
        return curves


def claim_linger(options: Options) -> list[Result]:
    """All lingers, in turn within each run; first at RATE, so that no load disturbs latencies."""
    sweep = Sweep()
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            topic = f"linger-{run}"
            run_workload(cluster.create_topic(topic))
            for measure in (sweep.measure_latency, sweep.measure_rate):
                for linger_ms in LINGERS_MS:
                    run_workload(measure(cluster, topic, linger_ms, options.scale))
            run_workload(cluster.delete_topic(topic))
    curves = (sweep.rate, sweep.latency, sweep.cost, sweep.trade())
    return [result for one in curves for result in one.results()]
