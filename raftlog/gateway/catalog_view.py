"""The catalog in a gateway has entries by log, each with a stub topic. Pure.

A *stub* is a topic of the home cluster with the log's name and number of partitions, and without
records. The home cluster's coordinators assign its partitions and keep its offsets, as for any
topic. `max.message.bytes=1` marks a stub, and keeps every record out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.api.catalog import CatalogEntry, decode_entry
from raftlog.peer.dial import parse_address
from raftlog.record.errors import UNKNOWN_TOPIC, LogError, quoted

LOGS_MAX: Final = 10_000
"""Entries of one catalog. Further logs are rejected."""
STUB_CONFIG: Final = ("max.message.bytes", "1")
"""Config that admits no record, because the smallest record batch has more than 61 bytes."""


class CatalogView:
    """Entries by log, by the records so far."""

    def __init__(self) -> None:
        self._entries: dict[str, CatalogEntry] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> bool:
        """Apply one record of the catalog. Returns whether the view changed.

        Raises ValueError for a record without a valid entry. The log then keeps its previous entry.
        """
        if key is None:
            raise ValueError("a record without a key")
        name = key.decode()
        if value is None:
            return self._entries.pop(name, None) is not None
        entry = decode_entry(value)
        if entry.log != name:
            raise ValueError(f"the key is {quoted(name)}, the entry's log {quoted(entry.log)}")
        for address in entry.addresses:
            parse_address(address)
        if name not in self._entries and len(self._entries) >= LOGS_MAX:
            raise ValueError(f"the catalog has {LOGS_MAX} logs, as many as it may")
        if self._entries.get(name) == entry:
            return False
        self._entries[name] = entry
        return True

    def logs(self) -> list[CatalogEntry]:
        """All served logs, by name."""
        return [entry for _, entry in sorted(self._entries.items()) if entry.state != "removed"]

    def find(self, log: str) -> CatalogEntry:
        """The entry of a served log. Raises LogError UNKNOWN_TOPIC."""
        entry = self._entries.get(log)
        if entry is None or entry.state == "removed":
            raise LogError(UNKNOWN_TOPIC, f"There is no log {quoted(log)} in the catalog.")
        return entry


# Stubs


@dataclass(frozen=True, slots=True)
class HomeTopic:
    """A topic of the home cluster."""

    partitions: int
    configs: Mapping[str, str]

    @property
    def is_stub(self) -> bool:
        """Whether the topic has the mark of stubs."""
        name, value = STUB_CONFIG
        return self.configs.get(name) == value


@dataclass(frozen=True, slots=True)
class CreateStub:
    """The home cluster has no such topic, so the stub is to be created."""

    partitions: int


@dataclass(frozen=True, slots=True)
class GrowStub:
    """The log has more partitions than its stub."""

    partitions: int


@dataclass(frozen=True, slots=True)
class StubReady:
    """Groups may read the log."""


@dataclass(frozen=True, slots=True)
class NoStub:
    """Groups cannot read the log, for this reason."""

    reason: str


StubStep: TypeAlias = CreateStub | GrowStub | StubReady | NoStub


def stub_step(entry: CatalogEntry, found: HomeTopic | None, home_cluster_id: str) -> StubStep:
    """The next step towards a log's stub in the home cluster.

    A log of the home cluster itself is its own stub. A stub is never deleted here, because group
    offsets would go with the topic, and a removed log may return.
    """
    if not entry.cluster_id:
        return NoStub("its cluster is being created")
    if entry.cluster_id == home_cluster_id:
        if found is None:
            return NoStub("the home cluster has no topic of that name yet")
    elif found is None:
        return CreateStub(entry.partitions)
    elif not found.is_stub:
        return NoStub(
            "the home cluster has a topic of that name with records of its own "
            f"({STUB_CONFIG[0]} is not {STUB_CONFIG[1]}): rename one of them"
        )
    elif found.partitions < entry.partitions:
        return GrowStub(entry.partitions)
    return StubReady()


def merged_addresses(
    seeds: Iterable[str], learned: Iterable[str], count_max: int
) -> tuple[str, ...]:
    """The given addresses first, then the discovered addresses, each once."""
    return tuple(dict.fromkeys((*seeds, *learned)))[:count_max]
