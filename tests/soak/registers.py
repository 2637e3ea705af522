"""The soak of registers: the cluster's settings, under clients, with the history checked.

Clients read and write registers (register_clients.py) while the nemesis kills and pauses nodes.
After the last fault every register is read through every node. Then:

- the history of each register must be linearizable;
- the log indexes in the answers must agree with time, values and each other;
- no term has two active leaders, no node ends by itself, and once all nodes answer again after a
  fault a leader is active within ten seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from bench.cluster import Cluster
from bench.kept_connection import KeptConnection, NotSentError, OutcomeLostError
from raftlog.api.cluster import QuorumInfo
from tests.soak.nemesis import Fault, Nemesis, Pace
from tests.soak.register_clients import FIRST_VALUE, REGISTERS, RegisterClient
from tests.verification.history_file import HistoryWriter, load
from tests.verification.register_history import DECODER, Kind, Operation, Outcome
from tests.verification.register_log_order import log_order_anomalies
from tests.verification.register_minimal import impossible

CLIENTS: Final = 8
PACE: Final = Pace(calm_s=(0.5, 2.0), down_s=(0.0, 2.0), pause_s=(0.2, 3.0))
FINAL_READS_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1
WINDOW_S: Final = 0.5
"""A window of this length counts as available if a write was acknowledged within."""
WATCH_S: Final = 0.1
WATCH_TIMEOUT_S: Final = 0.5
HISTORY_FILE: Final = "registers.jsonl"


@dataclass(slots=True)
class RegistersRun:
    """The observations of one run."""

    history: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    elections: int = 0
    anomalies: list[str] = field(default_factory=list)

    @classmethod
    def replay(cls, directory: Path) -> RegistersRun:
        """Check the history in a directory again."""
        history = list(load(directory / HISTORY_FILE, DECODER))
        return cls(history, anomalies=judge(history))


async def soak(
    processes: Cluster,
    directory: Path,
    *,
    kinds: Iterable[str],
    seconds: float,
    rate: float,
    seed: int,
    pace: Pace = PACE,
    log: Callable[[str], None] = print,
) -> RegistersRun:
    """Strike a cluster by these kinds of faults under load, then check the clients' history.

    The run ends after the last fault, at the latest after so many seconds. `rate` is the number of
    operations a second of all clients together.
    """
    run = RegistersRun()
    writer = HistoryWriter(directory / HISTORY_FILE)
    values = itertools.count(FIRST_VALUE)
    addresses = {node_id: node.address for node_id, node in processes.nodes.items()}

    def record(operation: Operation) -> None:
        run.history.append(operation)
        writer.add(operation)

    clients = [
        RegisterClient(
            number,
            addresses,
            record,
            random.Random(f"{seed}-{number}"),
            lambda: next(values),
            process_step=CLIENTS + 1,
        )
        for number in range(CLIENTS)
    ]
    last = RegisterClient(CLIENTS, addresses, record, random.Random(seed), lambda: next(values))
    nemesis = Nemesis(processes, (), random.Random(seed), pace, log=log)
    watch = LeaderWatch(addresses)
    stop, stop_watch = asyncio.Event(), asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run(stop_watch))
            for client in clients:
                tasks.create_task(client.run(rate / CLIENTS, stop))
            striking = tasks.create_task(nemesis.run(kinds, stop))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(striking)
            stop.set()
            await striking
            run.anomalies += nemesis.anomalies or await _final_reads(last, processes)
            stop_watch.set()
    finally:
        writer.close()
        last.close()
    run.faults = nemesis.faults
    run.elections = watch.elections
    run.anomalies += [*watch.anomalies(), *judge(run.history)]
    return run


async def _final_reads(client: RegisterClient, processes: Cluster) -> list[str]:
    """Read every register through every node of a healed cluster."""
    unread = [(key, node_id) for key in REGISTERS for node_id in processes.nodes]
    deadline = time.monotonic() + FINAL_READS_TIMEOUT_S
    while unread and time.monotonic() < deadline:
        operation = await client.read(*unread[-1])
        if operation.outcome is Outcome.OK:
            unread.pop()
        else:
            await asyncio.sleep(RETRY_S)
    if not unread:
        return []
    return [f"After the end, within {FINAL_READS_TIMEOUT_S} s, no answer to reads of {unread}"]


@dataclass(slots=True)
class LeaderWatch:
    """Polls every node for its view of the quorum; two leaders of one term break Raft."""

    addresses: dict[int, str]
    active_by_term: dict[int, set[int]] = field(default_factory=dict)
    """The nodes that reported themselves as active leader of a term."""

    async def run(self, stop: asyncio.Event) -> None:
        """Poll until `stop` is set."""
        await asyncio.gather(*(self._watch(node_id, stop) for node_id in sorted(self.addresses)))

    @property
    def elections(self) -> int:
        """Observed changes of the active leader or its term."""
        return max(0, sum(map(len, self.active_by_term.values())) - 1)

    def anomalies(self) -> list[str]:
        """Terms with more than one leader."""
        return [
            f"Nodes {sorted(leaders)} were all the active leader of term {term}."
            for term, leaders in sorted(self.active_by_term.items())
            if len(leaders) > 1
        ]

    async def _watch(self, node_id: int, stop: asyncio.Event) -> None:
        connection = KeptConnection(self.addresses[node_id])
        try:
            while not stop.is_set():
                view = await _quorum(connection)
                if view is not None and view.is_active and view.leader_id == node_id:
                    self.active_by_term.setdefault(view.term, set()).add(node_id)
                await asyncio.sleep(WATCH_S)
        finally:
            connection.close()


async def _quorum(connection: KeptConnection) -> QuorumInfo | None:
    try:
        answer = await connection.request("GET", "/v1/quorum", timeout_s=WATCH_TIMEOUT_S)
    except (NotSentError, OutcomeLostError):
        return None
    return msgspec.json.decode(answer.body, type=QuorumInfo) if answer.status == 200 else None


def judge(history: Sequence[Operation]) -> list[str]:
    """The anomalies of a history. A history too hard to check counts as an anomaly."""
    return [*impossible(history), *log_order_anomalies(history)]


def availability(history: Sequence[Operation]) -> tuple[float, float]:
    """Share of windows with an acknowledged write, and the longest gap between them in seconds."""
    if not history:
        return 0.0, 0.0
    start_ns = min(operation.invoked_ns for operation in history)
    end_ns = max(operation.returned_ns for operation in history)
    writes_ns = sorted(
        operation.returned_ns
        for operation in history
        if operation.kind is Kind.WRITE and operation.outcome is Outcome.OK
    )
    window_ns = int(WINDOW_S * 1e9)
    windows = (end_ns - start_ns) // window_ns + 1
    served = len({(time_ns - start_ns) // window_ns for time_ns in writes_ns})
    times_ns = [start_ns, *writes_ns, end_ns]
    gap_ns = max(later - earlier for earlier, later in itertools.pairwise(times_ns))
    return served / windows, gap_ns / 1e9


def print_report(run: RegistersRun) -> None:
    """Print the run in a few lines."""
    by_outcome = Counter(operation.outcome for operation in run.history)
    share, gap_s = availability(run.history)
    counts = ", ".join(f"{by_outcome[outcome]:,} {outcome.value}" for outcome in Outcome)
    print(f"  operations    {len(run.history):,}: {counts}")
    print(f"  faults        {len(run.faults)}, elections seen {run.elections}")
    print(
        f"  availability  {share:.1%} of {WINDOW_S} s windows had a write acknowledged; "
        f"longest gap {gap_s:.2f} s"
    )
    recovery_s = [(fault.whole - fault.healed) / 1e9 for fault in run.faults if fault.whole]
    if recovery_s:
        print(
            f"  recovery      all answering to active leader: "
            f"median {statistics.median(recovery_s):.2f} s, longest {max(recovery_s):.2f} s"
        )
    print(f"  anomalies     {len(run.anomalies)}")
    for anomaly in run.anomalies:
        print(f"\nANOMALY {anomaly}")
