"""A gateway follows the catalog, and keeps a stub topic for each of its logs.

Long polls of the home cluster's v2 surface read the catalog, from its beginning after every
failure. So a removed log stays no longer after a lost connection than tombstones live.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from raftlog.api.catalog import CATALOG_TOPIC, CatalogEntry
from raftlog.api.cluster import MetadataResponse
from raftlog.api.common import Empty
from raftlog.api.v3 import ConfigValue, NewTopic, TopicChange
from raftlog.gateway.catalog_view import (
    STUB_CONFIG,
    CatalogView,
    CreateStub,
    GrowStub,
    HomeTopic,
    NoStub,
    StubReady,
    merged_addresses,
    stub_step,
)
from raftlog.gateway.service import Gateway
from raftlog.peer.dial import join_address
from raftlog.record.errors import (
    INTERNAL,
    INVALID_PARTITIONS,
    NOT_READY,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.rest.v2.topics import HIGH_WATERMARK_HEADER, NEXT_OFFSET_HEADER, TopicAnswer
from raftlog.world import Backoff

POLL_S: Final = 1.0
"""Longest seconds without news of the catalog. A response each second proves the home cluster
alive."""
RETRY_S: Final = 0.5
"""Seconds of pause after a failure."""
POLL_BYTES: Final = 1024 * 1024
STEPS_MAX: Final = 3
"""Steps towards one stub in one pass, which are create, grow and confirm."""
STUBS_CHECK_S: Final = 60.0
"""Seconds between checks of the stubs while the catalog does not change."""
STUBS_RETRIES: Final = Backoff(1.0, STUBS_CHECK_S)
"""Pauses between passes while a log has no stub."""
HOME_ADDRESSES_MAX: Final = 100

logger = logging.getLogger(__name__)


class _CatalogRecord(msgspec.Struct, frozen=True):
    """A record of the catalog in the v2 convention's binary form."""

    key: str | None
    value: str | None
    offset: int


_records_decoder = msgspec.json.Decoder(list[_CatalogRecord])


class CatalogFollower:
    """Keeps `gateway.catalog` up to date. `changed` is set after each change."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the catalog until cancelled."""
        gateway = self._gateway
        while True:
            try:
                await self._load_and_follow()
            except LogError as error:
                if gateway.catalog_failure != error.message:
                    gateway.catalog_failure = error.message
                    logger.warning(
                        "cannot read the catalog (%s), serving it as of %.0f s ago, retrying",
                        error.message,
                        gateway.catalog_age_s,
                    )
            await gateway.clock.sleep(RETRY_S)

    async def _load_and_follow(self) -> None:
        """Read the catalog from its beginning, without end. Raises LogError."""
        gateway = self._gateway
        view = CatalogView()
        offset, end = await self._poll(view, None, wait_s=0.0)
        while offset < end:
            offset, end = await self._poll(view, offset, wait_s=0.0)
        gateway.use_catalog(view)
        self._is_current()
        self.changed.set()
        logger.info("the catalog has %d logs", len(view.logs()))
        while True:
            following, _ = await self._poll(view, offset, wait_s=POLL_S)
            self._is_current()
            if following != offset:
                offset = following
                gateway.use_catalog(view)
                self.changed.set()

    def _is_current(self) -> None:
        self._gateway.catalog_seen_s = self._gateway.clock.monotonic()
        self._gateway.catalog_failure = ""

    async def _poll(
        self, view: CatalogView, offset: int | None, *, wait_s: float
    ) -> tuple[int, int]:
        """Apply the next records. Returns next offset and high watermark. Raises LogError."""
        start = "earliest" if offset is None else str(offset)
        reply = await self._gateway.home.send(
            "GET",
            f"/topics/{CATALOG_TOPIC}/partitions/0/records?offset={start}"
            f"&timeout={int(wait_s * 1000)}&max_bytes={POLL_BYTES}&isolation=read_committed",
            headers={"Accept": "application/vnd.kafka.binary.v2+json"},
            wait_s=wait_s,
            may_repeat=True,
        )
        if reply.is_error:
            raise reply.error()
        try:
            records = _records_decoder.decode(reply.body)
            following = int(reply.headers[NEXT_OFFSET_HEADER])
            end = int(reply.headers[HIGH_WATERMARK_HEADER])
        except (msgspec.MsgspecError, ValueError, KeyError) as error:
            raise LogError(INTERNAL, f"the response is no list of records: {error!r}") from error
        for record in records:
            self._apply(view, record)
        return following, end

    def _apply(self, view: CatalogView, record: _CatalogRecord) -> None:
        try:
            view.apply(
                None if record.key is None else b64decode(record.key),
                None if record.value is None else b64decode(record.value),
            )
        except ValueError as error:
            self._gateway.rejected_entries += 1
            logger.warning(
                "record %d of the catalog is no entry, and changes nothing: %s",
                record.offset,
                error,
            )


class StubKeeper:
    """Creates and grows the stub topics of all logs, and collects the home cluster's addresses."""

    def __init__(self, gateway: Gateway, changed: asyncio.Event) -> None:
        self._gateway = gateway
        self._changed = changed

    async def run(self) -> None:
        """Keep the stubs until cancelled."""
        passes, is_whole = 0, False
        while True:
            pause_s = STUBS_CHECK_S if is_whole else STUBS_RETRIES.delay_s(passes)
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                passes += 1
            else:
                self._changed.clear()
                passes, is_whole = 0, False
            if self._gateway.catalog_seen_s is not None and await self._pass():
                is_whole = True

    async def _pass(self) -> bool:
        """Take a step towards all stubs. Returns whether each log has a stub."""
        gateway = self._gateway
        try:
            await self._keep(gateway.catalog.logs())
        except LogError as error:
            logger.warning("the stub topics cannot be kept: %s", error.message)
            return False
        return not gateway.without_stub

    async def _keep(self, entries: Sequence[CatalogEntry]) -> None:
        """One pass over all logs. Raises LogError if the home cluster cannot be reached."""
        gateway = self._gateway
        found = await gateway.home.call("GET", "/v1/metadata", MetadataResponse, may_repeat=True)
        learned = [join_address(broker.host, broker.port) for broker in found.brokers]
        gateway.home.replace_addresses(
            merged_addresses(gateway.home_seeds, learned, HOME_ADDRESSES_MAX)
        )
        counts = {topic.name: len(topic.partitions) for topic in found.topics}
        ready = {entry.log for entry in entries} & gateway.stubs
        without: dict[str, str] = {}
        for entry in entries:
            if entry.log in ready and counts.get(entry.log, 0) >= entry.partitions:
                continue
            try:
                reason = await self._make(entry, found.cluster_id)
            except LogError as error:
                if error.entry is NOT_READY:
                    raise
                # A stub of too few partitions still serves those.
                without[entry.log] = error.message
                continue
            if reason is None:
                ready.add(entry.log)
                # Each stub counts at once, not after the pass, because a catalog may have thousands
                # of logs.
                gateway.stubs = gateway.stubs | {entry.log}
            else:
                ready.discard(entry.log)
                without[entry.log] = reason
        for log, reason in without.items():
            if gateway.without_stub.get(log) != reason:
                logger.warning("groups cannot read log %s: %s", log, reason)
        gateway.stubs = frozenset(ready)
        gateway.without_stub = without

    async def _make(self, entry: CatalogEntry, cluster_id: str) -> str | None:
        """Take steps to the log's stub. Returns the reason if there is none. Raises LogError."""
        for _ in range(STEPS_MAX):
            step = stub_step(entry, await self._topic(entry.log), cluster_id)
            match step:
                case StubReady():
                    return None
                case NoStub(reason):
                    return reason
                case CreateStub(partitions):
                    await self._create(entry.log, partitions)
                case GrowStub(partitions):
                    await self._grow(entry.log, partitions)
        return "the home cluster does not show its stub topic yet"

    async def _topic(self, name: str) -> HomeTopic | None:
        try:
            found = await self._gateway.home.call(
                "GET", f"/topics/{quote(name, safe='')}", TopicAnswer, may_repeat=True
            )
        except LogError as error:
            if error.entry is not UNKNOWN_TOPIC:
                raise
            return None
        return HomeTopic(len(found.partitions), found.configs)

    async def _create(self, name: str, partitions: int) -> None:
        new = NewTopic(name, partitions, configs=[ConfigValue(*STUB_CONFIG)])
        try:
            await self._gateway.home.call("POST", "/v3/clusters/-/topics", Empty, new)
        except LogError as error:
            # Another gateway was faster. The next step sees the topic's mark.
            if error.entry is not TOPIC_EXISTS:
                raise
        else:
            logger.info("stub topic %s created with %d partitions", name, partitions)

    async def _grow(self, name: str, partitions: int) -> None:
        path = f"/v3/clusters/-/topics/{quote(name, safe='')}"
        try:
            await self._gateway.home.call("PATCH", path, Empty, TopicChange(partitions))
        except LogError as error:
            # Another gateway may have been faster. Otherwise the steps end without a stub.
            if error.entry is not INVALID_PARTITIONS:
                raise
        else:
            logger.info("stub topic %s grows to %d partitions", name, partitions)
