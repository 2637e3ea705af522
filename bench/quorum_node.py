"""A node with a console: `raftlog serve`, and commands that are measured inside its process.

The node listens on a Unix socket beside the data directory. A line is a command, and so its answer:

    status                        leader, applied index, topics
    latency COUNT                 seconds of each of so many commands, one after the other
    throughput CLIENTS SECONDS    commands committed by so many proposers at once
    partitions COUNT              create metadata of so many partitions on absent brokers
    snapshot COUNT                propose until so many snapshots are taken: stalls of the loop
    stalls SECONDS                stalls of the event loop

The only program of bench/ that knows the inside of a node, to measure the quorum without HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.node import console_of
from raftlog.cli.main import cli
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import (
    AllocateProducerIds,
    CreateTopic,
    RegisterBroker,
    UnfenceBroker,
    encode_command,
)
from raftlog.metadata.decisions.admin_plans import PARTITIONS_PER_TOPIC_MAX
from raftlog.node import process as node_module
from raftlog.node.process import Node
from raftlog.raft import Applied, RaftMember
from raftlog.record.errors import NO_LEADER, LogError
from raftlog.record.types import BrokerId, TopicId
from raftlog.replication.cluster_metadata import propose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WARM_UP: Final = 200
ABSENT_BROKERS: Final = (BrokerId(1_001), BrokerId(1_002), BrokerId(1_003))
"""Registered brokers without processes: replicas on real nodes would be 100,000 logs."""
SNAPSHOT_PROPOSERS: Final = 16
SNAPSHOT_TIMEOUT_S: Final = 180.0
STALL_SAMPLE_S: Final = 0.001
STALLS_TOLD: Final = 5
CREATE_TRIES_MAX: Final = 10


class Stalls:
    """How late the event loop was, sampled every millisecond."""

    def __init__(self) -> None:
        self.longest: list[tuple[float, float]] = []
        """(seconds late, seconds since the beginning), the longest first."""

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Sample while the block runs."""
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        due = started + STALL_SAMPLE_S
        handle: asyncio.TimerHandle | None = None

        def sample() -> None:
            nonlocal due, handle
            now = time.perf_counter()
            self.longest.append((now - due, now - started))
            self.longest = sorted(self.longest, reverse=True)[:STALLS_TOLD]
            due = now + STALL_SAMPLE_S
            handle = loop.call_later(STALL_SAMPLE_S, sample)

        handle = loop.call_later(STALL_SAMPLE_S, sample)
        try:
            yield
        finally:
            handle.cancel()

    def as_fields(self) -> dict[str, Any]:
        """The longest, and when the longest few were."""
        return {
            "stall_s_max": self.longest[0][0] if self.longest else 0.0,
            "stalls": [[round(late, 6), round(at, 3)] for late, at in self.longest],
        }


class Console:
    """Carries out commands on a running node."""

    def __init__(self, node: Node) -> None:
        services = node.core.services
        self._node_id = services.node_id
        self._metadata = services.metadata
        self._quorum: RaftMember[ApplyResult] = services.quorum
        commands: tuple[Callable[..., Awaitable[dict[str, Any]]], ...] = (
            *(self.status, self.latency, self.throughput),
            *(self.partitions, self.snapshot, self.stalls),
        )
        self._commands = {command.__name__: command for command in commands}

    async def execute(self, line: str) -> dict[str, Any]:
        """Execute one line; a failure becomes an answer with an `error`."""
        name, *words = line.split()
        command = self._commands.get(name)
        if command is None:
            return {"error": f"there is no command {name!r}"}
        try:
            return await command(*(float(word) for word in words))
        except (LogError, RuntimeError, TypeError, ValueError, TimeoutError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def status(self) -> dict[str, Any]:
        """The quorum's state."""
        status = self._quorum.status()
        return {
            "node_id": self._node_id,
            "leader_id": status.leader_id,
            "is_active": status.is_active,
            "applied_index": status.applied_index,
            "topics": len(self._metadata.image.topics_by_name),
        }

    async def latency(self, count: float) -> dict[str, Any]:
        """Each waits until the one before is applied here: the floor of every change."""
        command = self._harmless_command()
        for _ in range(WARM_UP):
            await self._commit(command)
        samples = []
        for _ in range(int(count)):
            started = time.perf_counter()
            await self._commit(command)
            samples.append(time.perf_counter() - started)
        return {"seconds": samples}

    async def throughput(self, clients: float, seconds: float) -> dict[str, Any]:
        """Commands a second, counted between the first and the last moment of `seconds`."""
        command = self._harmless_command()
        committed = 0
        end = time.perf_counter() + seconds

        async def client() -> None:
            nonlocal committed
            while time.perf_counter() < end:
                await self._commit(command)
                committed += 1

        for _ in range(WARM_UP):
            await self._commit(command)
        started = time.perf_counter()
        end = started + seconds
        await asyncio.gather(*(client() for _ in range(int(clients))))
        return {"committed": committed, "seconds": time.perf_counter() - started}

    async def partitions(self, count: float) -> dict[str, Any]:
        """Topics of three replicas, as large as topics may be, without a topic config."""
        started = time.perf_counter()
        for broker_id in ABSENT_BROKERS:
            if broker_id not in self._metadata.image.brokers:
                registered = await propose(self._quorum, _absent_broker(broker_id))
                registered.check()
        left = int(count)
        number = len(self._metadata.image.topics_by_name)
        while left > 0:
            await self._create_topic(f"wide-{number}", min(left, PARTITIONS_PER_TOPIC_MAX))
            left -= PARTITIONS_PER_TOPIC_MAX
            number += 1
        return {"seconds": time.perf_counter() - started}

    async def snapshot(self, count: float) -> dict[str, Any]:
        """Enough commands for `count` snapshots; the longest stalls of the loop meanwhile."""
        command = self._harmless_command()
        stalls = Stalls()
        taken = 0
        taken_at: list[float] = []
        is_done = False

        async def client() -> None:
            while not is_done:
                await self._commit(command)

        started = time.perf_counter()
        async with stalls.watched(), asyncio.timeout(SNAPSHOT_TIMEOUT_S):
            clients = [asyncio.create_task(client()) for _ in range(SNAPSHOT_PROPOSERS)]
            try:
                index = self._quorum.status().snapshot_index
                while taken < int(count):
                    await asyncio.sleep(0.005)
                    newest = self._quorum.status().snapshot_index
                    if newest != index:
                        index, taken = newest, taken + 1
                        taken_at.append(round(time.perf_counter() - started, 3))
            finally:
                is_done = True
                await asyncio.gather(*clients)
        return {**stalls.as_fields(), "snapshots_at": taken_at}

    async def stalls(self, seconds: float) -> dict[str, Any]:
        """The longest stalls of the loop while others do something to this node."""
        stalls = Stalls()
        before = self._quorum.status().snapshot_index
        async with stalls.watched():
            await asyncio.sleep(seconds)
        after = self._quorum.status().snapshot_index
        return {**stalls.as_fields(), "took_snapshot": after != before}

    def _harmless_command(self) -> bytes:
        broker = self._metadata.image.brokers[self._node_id]
        return encode_command(
            AllocateProducerIds(broker_id=self._node_id, broker_epoch=broker.broker_epoch, count=1)
        )

    async def _commit(self, command: bytes) -> None:
        outcome = await self._quorum.propose(command)
        if not isinstance(outcome, Applied):
            raise RuntimeError(f"a command was not committed: {outcome}")  # noqa: TRY004
        outcome.result.check()

    async def _create_topic(self, name: str, partition_count: int) -> None:
        command = CreateTopic(
            topic_id=TopicId(os.urandom(16).hex()),
            name=name,
            configs={},
            assignments=tuple(
                ABSENT_BROKERS[number % 3 :] + ABSENT_BROKERS[: number % 3]
                for number in range(partition_count)
            ),
        )
        for _ in range(CREATE_TRIES_MAX):
            # The controller fences the absent brokers again before long.
            for broker_id in ABSENT_BROKERS:
                epoch = self._metadata.image.brokers[broker_id].broker_epoch
                await propose(self._quorum, UnfenceBroker(broker_id=broker_id, broker_epoch=epoch))
            try:
                await propose(self._quorum, command)
            except LogError as error:
                if error.entry is not NO_LEADER:
                    raise
                continue
            return
        raise RuntimeError("the absent brokers were always fenced before a topic could be created")


def _absent_broker(broker_id: BrokerId) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        directory_id=os.urandom(16).hex(),
        incarnation=os.urandom(16).hex(),
        host="127.0.0.1",
        port=1,
        software_version="absent",
    )


class NodeWithConsole(Node):
    """The node class of `raftlog serve` in this program."""

    _server: asyncio.Server

    @classmethod
    async def start(cls, *arguments: Any, **named: Any) -> Node:
        """Start as every node does, then take commands."""
        node = await Node.start(*arguments, **named)
        console = Console(node)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                answer = await console.execute(line.decode())
                writer.write(json.dumps(answer).encode() + b"\n")
            writer.close()

        path = console_of(Path(sys.argv[sys.argv.index("--data-dir") + 1]))
        path.unlink(missing_ok=True)  # left behind by a killed process
        cls._server = await asyncio.start_unix_server(serve, path)
        return node


def main() -> None:
    """`raftlog serve` with the console."""
    node_module.Node = NodeWithConsole  # type: ignore[misc]
    cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
