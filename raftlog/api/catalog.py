"""The catalog: which logs a fleet has, and the cluster that holds each of them.

The catalog is an ordinary compacted topic of the fleet's home cluster. Key: the log's name in
UTF-8. Value: a `CatalogEntry` as JSON; a tombstone forgets the log.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

CATALOG_TOPIC: Final = "raftlog.catalog"
CATALOG_PARTITIONS: Final = 1
CATALOG_CONFIG: Final = (("cleanup.policy", "compact"),)
ENTRY_VERSION: Final = 1
ADDRESSES_MAX: Final = 1_000
"""As many as a cluster may have nodes."""

LogState = Literal["creating", "online", "degraded", "removed"]


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One log. Unknown fields are ignored: an older reader takes a newer entry."""

    log: Annotated[str, Meta(min_length=1)]
    """The topic's name, in its cluster."""
    cluster: str
    """The cluster's name in the fleet's file."""
    cluster_id: str = ""
    """Empty until the cluster has been created."""
    addresses: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES_MAX)] = ()
    """`host:port` of the cluster's nodes; any of them will do."""
    partitions: Annotated[int, Meta(ge=1)] = 1
    state: LogState
    """creating: not usable yet; degraded: usable in part; removed: no longer in the fleet's file,
    though the cluster may still run."""
    version: int = ENTRY_VERSION


def encode_entry(entry: CatalogEntry) -> bytes:
    """The entry as the value of a record."""
    return msgspec.json.encode(entry)


def decode_entry(value: bytes) -> CatalogEntry:
    """The inverse of `encode_entry`. Raises ValueError for a value that is no entry."""
    try:
        return msgspec.json.decode(value, type=CatalogEntry)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no entry of the catalog: {error}") from error
