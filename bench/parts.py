"""The suites made of parts: choice and execution of their parts."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from bench.coordination import groups, takeover, transactions
from bench.kafka import beside, faults
from bench.kafka import lone as kafka_lone
from bench.kafka import suite as kafka_clients
from bench.replication import catch_up, gaps, lone, many, produce
from bench.report import Options, Result
from bench.sources import claims, linger, promises
from bench.spark import latency, peer, reading, running, starting, writing
from bench.state import key_values, primaries, replicas

Part = Callable[[Options], list[Result]]

PARTS: Final[dict[str, dict[str, Part]]] = {
    "cluster": {
        "produce": produce.produce,
        "latency": lone.latency,
        "consume": produce.consume,
        "gap-kill": gaps.gap_kill,
        "gap-pause": gaps.gap_pause,
        "gap-cut": gaps.gap_cut,
        "gap-move": gaps.gap_move,
        "catch-up": catch_up.catch_up,
        "partitions": many.partitions,
        "idle": many.idle,
    },
    "groups": {
        "rebalance": groups.rebalance,
        "member-kill": groups.member_kill,
        "members-idle": groups.members_idle,
        "million-offsets": takeover.million_offsets,
        "commits": groups.commits,
        "in-group": groups.consume_in_group,
        "coordinator-kill": takeover.groups_killed,
    },
    "transactions": {
        "small": transactions.small,
        "throughput": transactions.throughput,
        "idempotence": transactions.idempotence,
        "exactly-once": transactions.exactly_once,
        "txn-coordinator-kill": takeover.transactions_killed,
    },
    "state": {
        "in-process": key_values.in_process,
        "over-http": key_values.over_http,
        "primary-killed": primaries.killed,
        "primary-paused": primaries.paused,
        "handed-over": primaries.handed_over,
        "lag": replicas.lag,
        "stopped": replicas.stopped,
        "replicas": replicas.many_replicas,
        "new-replica": replicas.new_replica,
    },
    "sources": {
        "claim-replicas": claims.claim_replicas,
        "claim-payloads": claims.claim_payloads,
        "claim-batches": claims.claim_batches,
        "claim-pauses": claims.claim_pauses,
        "claim-promises": promises.claim_promises,
        "claim-linger": linger.claim_linger,
    },
    "kafka": {
        "clients-produce": kafka_clients.produce,
        "clients-consume": kafka_clients.consume,
        "kafka-lone": kafka_lone.lone_requests,
        "kafka-leader-kill": faults.leader_kill,
        "kafka-idle": kafka_lone.idle,
        "beside-lone": beside.one_at_a_time,
        "beside-memory": beside.memory,
    },
    "spark": {
        "start": starting.start,
        "batch": reading.batch,
        "stream": reading.stream,
        "write": writing.write,
        "micro-batch": latency.micro_batch,
        "peer": peer.peer,
    },
}
"""By suite and name."""


def choose_parts(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The chosen ones of `parts`: by full name or prefix; all if no name is given.

    Raises ValueError: a name matches no part.
    """
    for name in names:
        if not any(part.startswith(name) for part in parts):
            raise ValueError(f"{name!r} is none of {', '.join(parts)}")
    return [part for part in parts if not names or any(part.startswith(name) for name in names)]


def run(suite: str, names: Sequence[str], options: Options) -> tuple[list[Result], list[str]]:
    """Run these parts of a suite; return the results, and the parts that failed."""
    results: list[Result] = []
    failed: list[str] = []
    with _terminable():
        try:
            for name in names:
                load = os.getloadavg()[0]
                now = time.strftime("%H:%M:%S")
                print(f"-- {suite}: {name} ({now}, load average {load:.1f})", flush=True)
                try:
                    found = PARTS[suite][name](options)
                except Exception:  # reported in full, and by the exit code
                    traceback.print_exc()
                    failed.append(name)
                    continue
                for result in found:
                    result.details["load average before"] = load
                results += found
        finally:
            if suite == "spark":
                running.stop()
    return results, failed


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that all nodes end with the program."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
