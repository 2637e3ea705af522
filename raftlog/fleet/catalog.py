"""The catalog's topic in the home cluster, read whole and written entry by entry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from raftlog_client import Consumer, Producer, TopicPartition

from raftlog.api.catalog import CATALOG_TOPIC, CatalogEntry, decode_entry, encode_entry

logger = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 60.0
POLL_MS: Final = 1_000
_PLACE: Final = TopicPartition(CATALOG_TOPIC, 0)


async def read_catalog(servers: Sequence[str]) -> dict[str, CatalogEntry]:
    """The entries by log, as of now. Raises TimeoutError, RaftlogClientError."""
    entries: dict[str, CatalogEntry] = {}
    async with (
        asyncio.timeout(READ_TIMEOUT_S),
        Consumer(
            bootstrap_servers=list(servers), auto_offset_reset="earliest", client_id="raftlog-fleet"
        ) as consumer,
    ):
        consumer.assign([_PLACE])
        end = (await consumer.end_offsets([_PLACE]))[_PLACE]
        while await consumer.position(_PLACE) < end:
            found = await consumer.getmany(timeout_ms=POLL_MS)
            for record in found.get(_PLACE, []):
                _take(entries, record.key, record.value)
    return entries


async def write_catalog(servers: Sequence[str], entries: Mapping[str, CatalogEntry | None]) -> None:
    """Write entries by log. None forgets the log. Returns once all are durable.

    Raises RaftlogClientError.
    """
    async with Producer(
        bootstrap_servers=list(servers), acks="all", idempotent=True, client_id="raftlog-fleet"
    ) as producer:
        for log, entry in sorted(entries.items()):
            value = None if entry is None else encode_entry(entry)
            await producer.send_and_wait(CATALOG_TOPIC, value, key=log.encode(), partition=0)


def _take(entries: dict[str, CatalogEntry], key: bytes | None, value: bytes | None) -> None:
    if key is None:
        logger.warning("the catalog has a record without a key, which is ignored")
        return
    log = key.decode(errors="replace")
    if value is None:
        entries.pop(log, None)
        return
    try:
        entries[log] = decode_entry(value)
    except ValueError as error:
        # An earlier run's entry is replaced if the log is one of the file's.
        entries.pop(log, None)
        logger.warning("log %s: %s", log, error)
