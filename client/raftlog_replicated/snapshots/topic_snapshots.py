"""Snapshots in a topic of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from raftlog_client import Admin, Consumer, Producer, TopicPartition

from raftlog_replicated.logs.topics import CHUNKS, MANIFESTS, records_before
from raftlog_replicated.snapshots.snapshots import Manifest

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
