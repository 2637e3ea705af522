"""The soak of replicated states: a key-value store and a bank, with three replica processes.

Clients write and read both over HTTP (state_clients.py), while nodes and replicas are killed and
paused in turn. After the last fault all is read from every replica. Then:

- the history of each key must be linearizable, unknown outcomes and refusals included;
- tokens never go back, and each bank client's balances are those of its acknowledged transfers;
- no term of a state has two primaries; all replicas reach the same position;
- no node and no replica has ended by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import Cluster, NotWholeError
from raftlog.cluster.process import free_ports
from tests.soak.client_processes import ClientProcesses
from tests.soak.nemesis import WHOLE_TIMEOUT_S, Fault, Nemesis, Pace
from tests.soak.records import node_anomalies
from tests.soak.state_clients import KEYS, BankClient, LostError, RegisterClient, Service, until
from tests.soak.state_replica import ReplicaOrder
from tests.verification.history_file import HistoryWriter, load
from tests.verification.register_history import DECODER, Kind, Operation, Outcome
from tests.verification.register_minimal import impossible

STATES: Final = ("kv", "bank")
REPLICAS: Final = ("a", "b", "c")
REGISTER_CLIENTS: Final = 5
BANK_CLIENTS: Final = 3
TOPICS: Final = ("state.kv", "state.bank")
WATCH_S: Final = 0.1
START_TIMEOUT_S: Final = 60.0
FINAL_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.1
HISTORY_FILE: Final = "state.jsonl"


@dataclass(slots=True)
class StateRun:
    """The observations of one run."""

    history: list[Operation] = field(default_factory=list)
    transfers: int = 0
    terms: dict[str, int] = field(default_factory=dict)
    """The last term of each state."""
    faults: list[Fault] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)

    @classmethod
    def replay(cls, directory: Path) -> StateRun:
        """Check the history in a directory again."""
        history = list(load(directory / HISTORY_FILE, DECODER))
        return cls(history, anomalies=impossible(history))


@dataclass(slots=True)
class PrimaryWatch:
    """Polls every replica for its role: two primaries of one term break the state."""

    services: dict[str, Service]
    found: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Replicas that said they were the primary, by state and term."""

    async def run(self, stop: asyncio.Event) -> None:
        """Poll until `stop` is set."""
        while not stop.is_set():
            for state, service in self.services.items():
                for address in service.addresses:
                    with suppress(LostError):
                        answer = await service.call("GET", address, "/status")
                        status = json.loads(answer.body)
                        if status["role"] == "PRIMARY":
                            self.found[state, status["term"]].add(status["replica"])
            await asyncio.sleep(WATCH_S)

    def anomalies(self) -> list[str]:
        """Terms with more than one primary."""
        return [
            f"{state}: term {term} has the primaries {sorted(replicas)}"
            for (state, term), replicas in sorted(self.found.items())
            if len(replicas) > 1
        ]


@dataclass(slots=True)
class _Stage:
    """The clients of a run, and what watches the primaries."""

    registers: list[RegisterClient]
    banks: list[BankClient]
    watch: PrimaryWatch

    @classmethod
    def of(
        cls, orders: list[ReplicaOrder], seed: int, record: Callable[[Operation], None]
    ) -> _Stage:
        """Clients with services of their own."""
        values = itertools.count(1)
        addresses = {
            "kv": [one.kv_listen for one in orders],
            "bank": [one.bank_listen for one in orders],
        }

        def service(state: str, name: str) -> Service:
            return Service(addresses[state], random.Random(f"{seed}-{state}-{name}"))

        return cls(
            [
                RegisterClient(
                    number,
                    service("kv", str(number)),
                    record,
                    random.Random(f"{seed}-{number}"),
                    lambda: next(values),
                    REGISTER_CLIENTS,
                )
                for number in range(REGISTER_CLIENTS)
            ],
            [
                BankClient(number, service("bank", str(number)), random.Random(f"{seed}-b{number}"))
                for number in range(BANK_CLIENTS)
            ],
            PrimaryWatch({state: service(state, "watch") for state in STATES}),
        )

    def anomalies(self) -> list[str]:
        """What clients and watch have found."""
        found = self.watch.anomalies()
        for register in self.registers:
            found += register.anomalies
        for bank in self.banks:
            found += bank.anomalies
        return found

    async def close(self) -> None:
        """Close all connections."""
        services = [one.service for one in self.registers]
        services += [one.service for one in self.banks]
        for service in (*services, *self.watch.services.values()):
            await service.close()


async def soak(
    cluster: Cluster,
    directory: Path,
    *,
    kinds: Iterable[str],
    seconds: float,
    every_s: float,
    rate: float,
    seed: int,
    log: Callable[[str], None] = print,
) -> StateRun:
    """Strike a fresh cluster and its replicas for so long, then check what clients saw.

    `rate` is the number of operations a second of all clients together.
    """
    run = StateRun()
    orders = _orders(cluster.servers)
    groups = [f"state.{state}" for state in STATES]
    replicas = ClientProcesses(orders, directory, module="tests.soak.state_replica", groups=groups)
    writer = HistoryWriter(directory / HISTORY_FILE)

    def record(operation: Operation) -> None:
        run.history.append(operation)
        writer.add(operation)

    stage = _Stage.of(orders, seed, record)
    nemesis = Nemesis(
        cluster, TOPICS, random.Random(seed), Pace(every_s=every_s), clients=replicas, log=log
    )
    stop, stop_watch = asyncio.Event(), asyncio.Event()
    share = rate / (REGISTER_CLIENTS + BANK_CLIENTS)
    try:
        await replicas.start(replicas.numbers)
        await _wait_primaries(stage.watch.services)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.watch.run(stop_watch))
            for register in stage.registers:
                tasks.create_task(register.run(share, stop))
            for bank in stage.banks:
                tasks.create_task(bank.run(share, stop))
            striking = tasks.create_task(nemesis.run(kinds, stop))
            await asyncio.wait({striking}, timeout=seconds)
            stop.set()
            await striking
            run.anomalies += nemesis.anomalies or await _final_reads(cluster, stage)
            stop_watch.set()
        run.anomalies += replicas.ended() or await replicas.stop(replicas.numbers)
    except* LostError as error:
        run.anomalies += [f"a client gave up: {one!r}" for one in error.exceptions]
    finally:
        await replicas.kill(replicas.numbers)
        await stage.close()
        writer.close()
    run.anomalies += node_anomalies(cluster.nodes)
    run.faults = nemesis.faults
    run.transfers = sum(one.transfers for one in stage.banks)
    for state, term in stage.watch.found:
        run.terms[state] = max(term, run.terms.get(state, 0))
    run.anomalies += [*stage.anomalies(), *impossible(run.history)]
    return run


def _orders(servers: str) -> list[ReplicaOrder]:
    ports = iter(free_ports("127.0.0.1", len(REPLICAS) * len(STATES)))
    return [
        ReplicaOrder(
            f"replica-{name}",
            servers,
            name,
            f"127.0.0.1:{next(ports)}",
            f"127.0.0.1:{next(ports)}",
        )
        for name in REPLICAS
    ]


async def _wait_primaries(services: dict[str, Service]) -> None:
    """Wait until each state has a primary."""
    async with asyncio.timeout(START_TIMEOUT_S):
        for service in services.values():
            roles: set[str] = set()
            while "PRIMARY" not in roles:
                await asyncio.sleep(RETRY_S)
                roles = {str(one["role"]) for one in await _statuses(service)}


async def _statuses(service: Service) -> list[dict[str, object]]:
    found = []
    for address in service.addresses:
        with suppress(LostError):
            found.append(json.loads((await service.call("GET", address, "/status")).body))
    return found


async def _final_reads(cluster: Cluster, stage: _Stage) -> list[str]:
    """Read all from every replica of the healed states; all must reach one position."""
    register, services = stage.registers[0], stage.watch.services
    try:
        await cluster.wait_in_sync(TOPICS, WHOLE_TIMEOUT_S)
        async with asyncio.timeout(FINAL_TIMEOUT_S):
            for address in register.service.addresses:
                for key in KEYS:
                    await until(partial(register.read, key, address, "linearizable"))
            for bank in stage.banks:
                for address in bank.service.addresses:
                    await until(partial(bank.check, address))
            for service in services.values():
                await until(partial(_is_level, service))
    except NotWholeError as error:
        return [f"at the end: {error}"]
    except TimeoutError:
        seen = {state: await _statuses(service) for state, service in services.items()}
        return [f"{FINAL_TIMEOUT_S:g} s after the last fault, replicas do not answer: {seen}"]
    return []


async def _is_level(service: Service) -> bool:
    statuses = await _statuses(service)
    return len(statuses) == len(REPLICAS) and len({str(one["position"]) for one in statuses}) == 1


def longest_gap_s(history: list[Operation]) -> float:
    """Longest time without an acknowledged write."""
    times = sorted(
        one.returned_ns
        for one in history
        if one.kind is not Kind.READ and one.outcome is Outcome.OK
    )
    return max((b - a for a, b in itertools.pairwise(times)), default=0) / 1e9


def print_report(run: StateRun) -> None:
    """Print the run in a screenful."""
    by_outcome = Counter(one.outcome for one in run.history)
    counts = ", ".join(f"{by_outcome[outcome]:,} {outcome.value}" for outcome in Outcome)
    print(f"  operations    {len(run.history):,}: {counts}")
    print(f"  transfers     {run.transfers:,}")
    print(f"  last terms    {run.terms}")
    print(f"  longest time without an acknowledged write: {longest_gap_s(run.history):.2f} s")
    print(f"  faults        {len(run.faults)}")
    for kind, count in sorted(Counter(fault.kind for fault in run.faults).items()):
        print(f"    {count:3} {kind}")
    print(f"  anomalies     {len(run.anomalies)}")
    for anomaly in run.anomalies:
        print(f"ANOMALY {anomaly}")
