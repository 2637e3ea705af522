"""The topics of a state are found or made, and foreign topics are refused.

| topic | partition | records |
|---|---|---|
| `state.<name>` | 0, with layout `per-replica` one for each replica | entries |
| `state.<name>.snapshots`, compacted | 0 | layout, claims of partitions, manifests |
| | 1 | chunks of snapshots |

Only the layout's record proves that both topics are a state's. The topic of snapshots is made
first, so a topic of entries without that record is of other origin.

`TopicSnapshots` reads and writes the topic of snapshots.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from raftlog_client import (
    Admin,
    Consumer,
    Producer,
    RaftlogClientError,
    Record,
    ServerError,
    TopicNotFoundError,
    TopicPartition,
)

from raftlog_replicated.errors import LayoutError
from raftlog_replicated.snapshots.snapshots import Manifest

K = TypeVar("K")
V = TypeVar("V")
Layout: TypeAlias = Literal["shared", "per-replica"]
LAYOUTS: Final = ("shared", "per-replica")
NAME_PATTERN: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
MANIFESTS: Final = 0
CHUNKS: Final = 1
VERSION: Final = 1
LAYOUT_KEY: Final = b"\x00layout"
CLAIM_PREFIX: Final = b"\x00partition/"
REPLICAS_MAX: Final = 32
"""Most replicas of a state with a partition for each. Each commit writes to all of them."""
FOREVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The library deletes what snapshots replace, and nothing else may."""
ATTEMPTS_MAX: Final = 20
"""Most attempts, as other replicas may make the same topics or claims concurrently."""
CREATED_S: Final = 0.1
POLL_MS: Final = 200


class _Layout(msgspec.Struct, array_like=True, frozen=True):
    version: int
    layout: str


_layouts: msgspec.msgpack.Decoder[_Layout] = msgspec.msgpack.Decoder(_Layout)
_encode = msgspec.msgpack.Encoder().encode


async def records_before(
    consumer: Consumer[K, V], source: TopicPartition, end_offset: int
) -> AsyncGenerator[Record[K, V]]:
    """Records of a partition from the consumer's position up to an offset, about."""
    while await consumer.position(source) < end_offset:
        for record in (await consumer.getmany(source, timeout_ms=POLL_MS)).get(source, ()):
            yield record


class Clients(NamedTuple):
    """What the log and its snapshots share."""

    admin: Admin
    producer: Producer
    """Plain: for snapshots, layout and claims."""


class StateTopics:
    """The topics of one state."""

    def __init__(self, name: str, layout: Layout, servers: str | Sequence[str]) -> None:
        if not NAME_PATTERN.fullmatch(name):
            raise ValueError(
                f"a state's name has 1 to 200 letters, digits, dots, dashes and underscores, "
                f"not {name!r}"
            )
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be 'shared' or 'per-replica', not {layout!r}")
        self.log = f"state.{name}"
        self.snapshots = f"{self.log}.snapshots"
        self._layout: Layout = layout
        self._servers = servers

    async def find_or_make(self, clients: Clients) -> None:
        """Both topics exist, and are this state's. Raises LayoutError, RaftlogClientError."""
        await self._make(clients.admin, self.snapshots, 2, {"cleanup.policy": "compact"} | FOREVER)
        mark = (await self.marks(clients.admin)).get(LAYOUT_KEY)
        if mark is None:
            used = await self._used(clients.admin)
            mark = (await self.marks(clients.admin)).get(LAYOUT_KEY)
            # Another replica may have started to use them, and its layout came first.
            if used and mark is None:
                raise LayoutError(
                    f"Topics {', '.join(used)} exist, and were not made for a replicated state: "
                    "choose another name."
                )
        if mark is None:
            wanted = _encode(_Layout(VERSION, self._layout))
            await clients.producer.send_and_wait(self.snapshots, wanted, LAYOUT_KEY, MANIFESTS)
            mark = (await self.marks(clients.admin))[LAYOUT_KEY]
        self._check_layout(mark)
        await self._make(clients.admin, self.log, 1, FOREVER)

    async def own_partition(self, clients: Clients, replica_id: str) -> int:
        """The partition claimed for a replica, made if needed. Raises LayoutError."""
        key = CLAIM_PREFIX + replica_id.encode()
        for _ in range(ATTEMPTS_MAX):
            claims = {
                claimant: int.from_bytes(value, "big")
                for claimant, value in (await self.marks(clients.admin)).items()
                if claimant.startswith(CLAIM_PREFIX)
            }
            # The first claim of a number counts. `marks` has them in the log's order.
            owners: dict[int, bytes] = {}
            for claimant, number in claims.items():
                owners.setdefault(number, claimant)
            own = claims.get(key)
            if own is not None and owners[own] == key:
                await self._grow(clients.admin, own + 1)
                return own
            free = next(number for number in range(REPLICAS_MAX + 1) if number not in owners)
            if free == REPLICAS_MAX:
                raise LayoutError(
                    f"{self.log} has {REPLICAS_MAX} replicas, the most that a state with a "
                    "partition for each may have."
                )
            await clients.producer.send_and_wait(
                self.snapshots, free.to_bytes(4, "big"), key, MANIFESTS
            )
        raise LayoutError(f"Replica {replica_id} found no partition of {self.log} for itself.")

    async def marks(self, admin: Admin) -> dict[bytes, bytes]:
        """The newest values of the library's own keys, in the log's order."""
        source = TopicPartition(self.snapshots, MANIFESTS)
        bounds = (await admin.offsets([self.snapshots]))[source]
        found: dict[bytes, bytes] = {}
        if bounds.beginning_offset == bounds.end_offset:
            return found
        consumer: Consumer[bytes | None, bytes | None] = Consumer(
            bootstrap_servers=self._servers, auto_offset_reset="earliest"
        )
        consumer.assign([source])
        async with consumer:
            async for record in records_before(consumer, source, bounds.end_offset):
                if record.key is not None:
                    found.pop(record.key, None)
                    if record.value is not None:
                        found[record.key] = record.value
        return {key: value for key, value in found.items() if key.startswith(b"\x00")}

    def _check_layout(self, mark: bytes) -> None:
        try:
            found = _layouts.decode(mark)
        except msgspec.DecodeError as error:
            raise LayoutError(f"{self.snapshots} has a layout of another kind: {error}") from None
        if found.version != VERSION or found.layout != self._layout:
            raise LayoutError(
                f"{self.log} has layout {found.layout!r} of version {found.version}, not "
                f"{self._layout!r} of version {VERSION}."
            )

    async def _used(self, admin: Admin) -> list[str]:
        """Those of the topics that are not as new."""
        names = {self.snapshots} | ({self.log} & set(await admin.list_topics()))
        offsets = await admin.offsets(names)
        used = {one.topic for one, found in offsets.items() if found.end_offset}
        return sorted(used | (names & {self.log}))

    async def _make(
        self, admin: Admin, topic: str, partitions: int, configs: Mapping[str, str]
    ) -> None:
        for _ in range(ATTEMPTS_MAX):
            if topic in await admin.list_topics():
                break
            try:
                await admin.create_topic(topic, partitions=partitions, configs=dict(configs))
            except ServerError as error:
                # Another replica was faster.
                if not (error.entry.name == "TOPIC_EXISTS" or error.outcome_unknown):
                    raise
                await asyncio.sleep(CREATED_S)
        found = await admin.describe_topic(topic)
        if len(found.partitions) < partitions:
            raise LayoutError(
                f"Topic {topic} has {len(found.partitions)} partitions, and was not made for a "
                "replicated state."
            )
        policy = (await admin.describe_configs(topic))["cleanup.policy"].value
        expected = configs.get("cleanup.policy", "delete")
        if policy != expected:
            raise LayoutError(
                f"Topic {topic} has cleanup.policy={policy}, and a replicated state needs "
                f"{expected}: it was not made for one."
            )

    async def _grow(self, admin: Admin, partitions: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            if len((await admin.describe_topic(self.log)).partitions) >= partitions:
                return
            try:
                await admin.create_partitions(self.log, partitions)
            except RaftlogClientError as error:
                # Another replica may have made more.
                if isinstance(error, TopicNotFoundError):
                    raise
                await asyncio.sleep(CREATED_S)
        raise LayoutError(f"Topic {self.log} has fewer than {partitions} partitions.")


READ_BYTES_MAX = 8 << 20


class TopicSnapshots:
    """The topic of snapshots, as `Snapshots`."""

    def __init__(
        self, topic: str, servers: str | Sequence[str], admin: Admin, producer: Producer
    ) -> None:
        self._topic = topic
        self._servers = servers
        self._admin = admin
        self._producer = producer
        self._manifests: Consumer[bytes, bytes] | None = None

    async def close(self) -> None:
        """End the reading of manifests."""
        consumer, self._manifests = self._manifests, None
        if consumer is not None:
            await consumer.close()

    async def changes(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of manifests since the last call. Empty if none remain. The first call
        starts with all."""
        source = TopicPartition(self._topic, MANIFESTS)
        if self._manifests is None:
            self._manifests = await self._open(source)
        consumer = self._manifests
        end = (await consumer.end_offsets([source]))[source]
        # Keys with a zero are the library's own marks (layout, claims).
        return [
            (record.key, record.value)
            async for record in records_before(consumer, source, end)
            if record.key is None or not record.key.startswith(b"\x00")
        ]

    async def read(self, manifest: Manifest) -> AsyncIterator[bytes]:
        """The chunks of a snapshot that are there, in order."""
        source = TopicPartition(self._topic, CHUNKS)
        prefix = manifest.snapshot_id.encode() + b"/"
        consumer = await self._open(source)
        try:
            end = (await consumer.end_offsets([source]))[source]
            consumer.seek(source, manifest.first_chunk)
            count = 0
            # Deleted records are passed over, as a newer snapshot has taken their place.
            async for record in records_before(consumer, source, end):
                if (
                    record.key is not None
                    and record.key.startswith(prefix)
                    and record.value is not None
                ):
                    count += 1
                    yield record.value
                    if count == manifest.chunks:
                        return
        finally:
            await consumer.close()

    async def write_chunk(self, key: bytes, chunk: bytes) -> int:
        """Append a chunk. Returns its offset once it is committed."""
        return (await self._producer.send_and_wait(self._topic, chunk, key, CHUNKS)).offset

    async def write_manifest(self, key: bytes, value: bytes | None) -> None:
        """Append a manifest, or delete a manifest."""
        await self._producer.send_and_wait(self._topic, value, key, MANIFESTS)

    async def delete_chunks(self, below_offset: int) -> None:
        """Delete chunks that no snapshot needs."""
        await self._admin.delete_records({TopicPartition(self._topic, CHUNKS): below_offset})

    async def _open(self, source: TopicPartition) -> Consumer[bytes, bytes]:
        consumer: Consumer[bytes, bytes] = Consumer(
            bootstrap_servers=self._servers,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=READ_BYTES_MAX // 4,
            fetch_max_bytes=READ_BYTES_MAX,
        )
        consumer.assign([source])
        await consumer.start()
        return consumer
