"""The catalog lists a fleet's logs and the cluster of each log.

The catalog is an ordinary compacted topic of the fleet's home cluster. The key is the log's name in
UTF-8, the value a `CatalogEntry` as JSON. A tombstone removes the log.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from raftlog.record.decoders import json_decoder

CATALOG_TOPIC: Final = "raftlog.catalog"
CATALOG_PARTITIONS: Final = 1
CATALOG_CONFIG: Final = (("cleanup.policy", "compact"),)
ENTRY_VERSION: Final = 1
ADDRESSES_MAX: Final = 1_000
"""Most addresses of an entry, equal to the most nodes of a cluster."""

LogState = Literal["creating", "online", "degraded", "removed"]


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One log. Unknown fields are ignored, so an older reader accepts a newer entry."""

    log: Annotated[str, Meta(min_length=1)]
    """The topic's name, in its cluster."""
    cluster: str
    """The cluster's name in the fleet's file."""
    cluster_id: str = ""
    """Empty until the cluster has been created."""
    addresses: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES_MAX)] = ()
    """`host:port` of the cluster's nodes. A client may use any of them."""
    partitions: Annotated[int, Meta(ge=1)] = 1
    state: LogState
    """State of the log. `creating` is not usable yet, `degraded` is usable in part, and `removed`
    has left the fleet's file although the cluster may still run."""
    version: int = ENTRY_VERSION


def encode_entry(entry: CatalogEntry) -> bytes:
    """Encode the entry as the value of a record."""
    return msgspec.json.encode(entry)


def decode_entry(value: bytes) -> CatalogEntry:
    """Decode the value of a record. Raises ValueError for a value that is not an entry."""
    try:
        return json_decoder(CatalogEntry).decode(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not a catalog entry: {error}") from error
