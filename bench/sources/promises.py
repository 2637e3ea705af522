"""acks, min.insync.replicas and flush: the latency of a write, and how many nodes may die (CAP).

The claims are those of the DESOSA analysis (2021) and of the article on Apache ZooKeeper and Kafka
that the Tiny Log notes quote: with f + 1 members in sync a partition survives f crashes, and the
same setting decides how long writes go on.
tests/soak/test_deaths.py kills nodes to see whether the numbers hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, TypeAlias

from bench.cluster import NODES, publish_at, run_workload, running_cluster
from bench.report import Options, Result
from bench.sources.curves import Curves, Panel
from raftlog.cluster.manifest import Flush
from raftlog.workloads.latencies import Latencies

Acks: TypeAlias = Literal["all", 1, 0]

ACKS: Final[tuple[Acks, ...]] = (0, 1, "all")
MIN_ISRS: Final = (1, 2, 3)
FLUSHES: Final[tuple[Flush, ...]] = ("sync", "async")
RATE: Final = 500
LATENCY_S: Final = 1.0
LATENCY_S_MIN: Final = 0.4
WARM_UP_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Deaths:
    """How many of the three nodes with replicas may die."""

    writing: int
    """With writes going on, where the nodes are the voters."""
    writing_beside: int
    """The same where the voters are other nodes."""
    lossless: int
    """For good, disks and all, with nothing lost that was acknowledged."""


def deaths(acks: Acks, min_isr: int) -> Deaths:
    """The promise: acks=all needs `min_isr` replicas in sync, other writes need a leader."""
    by_isr = NODES - (min_isr if acks == "all" else 1)
    by_quorum = (NODES - 1) // 2
    return Deaths(min(by_isr, by_quorum), by_isr, min_isr - 1 if acks == "all" else 0)


def claim_promises(options: Options) -> list[Result]:
    """Latencies of all combinations, then the table of latencies and promises."""
    p50, p99 = (
        Curves(Panel(f"publish {name}, {RATE}/s", "min.insync.replicas", "ms"))
        for name in ("p50", "p99")
    )
    seconds = max(LATENCY_S_MIN, LATENCY_S * options.scale)
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            for flush, min_isr in product(FLUSHES, MIN_ISRS):
                topic = f"promise-{run}-{flush}-{min_isr}"
                configs = {"flush": flush, "min.insync.replicas": str(min_isr)}
                run_workload(cluster.create_topic(topic, 1, configs))
                for acks in ACKS:
                    publishing = publish_at(
                        cluster, topic, RATE, seconds, warm_up_s=WARM_UP_S, acks=acks
                    )
                    found = Latencies.from_seconds(run_workload(publishing).publish)
                    way = f"acks={acks}, flush={flush}"
                    p50.add(way, min_isr, found.percentiles["50pct"])
                    p99.add(way, min_isr, found.percentiles["99pct"])
                run_workload(cluster.delete_topic(topic))
    print_promises(p50, p99)
    return [*p50.results(), *p99.results(), *death_curves().results()]


def death_curves() -> Curves:
    """The promise over min.insync.replicas."""
    curves = Curves(
        Panel("nodes of 3 that may die", "min.insync.replicas", "nodes", is_linear_y=True)
    )
    ways: dict[str, Acks] = {"acks=all": "all", "acks=0 or 1": 1}
    for (way, acks), min_isr in product(ways.items(), MIN_ISRS):
        found = deaths(acks, min_isr)
        curves.note(f"{way}: writes go on, nodes are voters", min_isr, found.writing)
        curves.note(f"{way}: writes go on, voters elsewhere", min_isr, found.writing_beside)
        curves.note(f"{way}: nothing lost", min_isr, found.lossless)
    return curves


def print_promises(p50: Curves, p99: Curves) -> None:
    """Latency and promise of each combination, as a table."""
    print("   acks  min ISR  flush     p50 ms     p99 ms  may die: writing  beside  nothing lost")
    for acks, flush, min_isr in product(ACKS, FLUSHES, MIN_ISRS):
        way, found = f"acks={acks}, flush={flush}", deaths(acks, min_isr)
        print(
            f"   {acks!s:>4}  {min_isr:>7}  {flush:<5} {p50.median(way, min_isr):>10.2f} "
            f"{p99.median(way, min_isr):>10.2f}  {found.writing:>16}  {found.writing_beside:>6}  "
            f"{found.lossless:>12}"
        )
