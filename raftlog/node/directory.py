"""The data directory records its owner, its first start, and the node's address.

`directory.json` is written once, before any other file, and names the owner of the directory. The
file also keeps the request of the first start. If that ended before there was a metadata journal,
the next start must not take the empty directory for a cluster of one. `node.json` keeps the address
and rack of the last successful start, as a convenience. `cluster.json` keeps the cluster's id.
"""

from __future__ import annotations

import logging
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from raftlog.node.settings import NodeSettings
from raftlog.raft.log.store import JOURNAL_NAME, SNAPSHOT_NAME
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import when_directory_is_lost
from raftlog.storage.repair.quarantine import REPLICAS
from raftlog.world import Disk, DiskFullError, Randomness, read_small_file

logger = logging.getLogger(__name__)

METADATA_DIRECTORY: Final = "metadata"
IDENTITY_FILE: Final = "directory.json"
REMEMBERED_FILE: Final = "node.json"
CLUSTER_FILE: Final = "cluster.json"
FILE_BYTES_MAX: Final = 64 * 1024
DIRECTORY_ID_BYTES: Final = 16

_S = TypeVar("_S", bound=msgspec.Struct)


class IdentityError(Exception):
    """The data directory is another node's, damaged, or not whole. `str()` names the next step."""


class Remembered(msgspec.Struct, frozen=True):
    """The settings of a start that a later start may leave out."""

    listen: str | None = None
    advertised: str | None = None
    rack: str | None = None
    kafka_listen: str | None = None
    kafka_advertise: str | None = None


class _Cluster(msgspec.Struct, frozen=True):
    cluster_id: str


class FirstStart(Remembered, frozen=True):
    """The request of the first start."""

    voters: str | None = None
    join: str | None = None
    replaces: bool = False
    """Whether the node takes the place of a lost one of its id."""


class Identity(msgspec.Struct, frozen=True):
    """The owner of a data directory, so that no other node id serves it."""

    directory_id: str
    """Identifier drawn once. A wiped disk gets another identifier, and so is recognised."""
    node_id: int
    first_start: FirstStart = FirstStart()


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The state of a data directory at a start."""

    identity: Identity | None = None
    """None: the directory is new."""
    has_journal: bool = False
    """Whether there is metadata, so the directory's node has been in a cluster."""


def load_state(disk: Disk) -> DirectoryState:
    """Read the state of a data directory. Blocks, so call it inside `Disk.run`. Raises
    IdentityError if the files cannot be a node's whole directory, and DiskError."""
    has_metadata = disk.exists(METADATA_DIRECTORY)
    content = read_small_file(disk, IDENTITY_FILE, FILE_BYTES_MAX)
    if content is None:
        if has_metadata:
            raise IdentityError(f"The data directory holds a node's data, but no {IDENTITY_FILE}.")
        return DirectoryState()
    identity = _decode(content, Identity, IDENTITY_FILE)
    names = disk.list_directory(METADATA_DIRECTORY)
    has_journal = JOURNAL_NAME in names
    # A voter without its votes could vote twice, so only a directory that never served may lack
    # them.
    has_served = disk.exists(REMEMBERED_FILE) or SNAPSHOT_NAME in names
    if not has_journal and (has_served or disk.list_directory(REPLICAS)):
        raise IdentityError(
            f"The data directory has been in use, but its {METADATA_DIRECTORY}/{JOURNAL_NAME} is "
            f"missing: restore it. {when_directory_is_lost(identity.node_id)}"
        )
    return DirectoryState(identity, has_journal)


def requested_settings(settings: NodeSettings, state: DirectoryState) -> NodeSettings:
    """The settings of a first start, completed by those of an earlier unfinished start."""
    known = state.identity
    if known is None or settings.voters is not None or settings.join is not None:
        return settings
    first = known.first_start
    return replace(
        settings,
        voters=first.voters,
        join=first.join,
        replace=known.node_id if first.replaces else None,
    )


def claim(
    disk: Disk, settings: NodeSettings, state: DirectoryState, randomness: Randomness
) -> Identity:
    """Make the directory this node's, durably, before any other write. Blocks.

    Before there is a journal, another request for the first start replaces the earlier request.
    Raises IdentityError if the directory is another node's, and DiskError.
    """
    known = state.identity
    if known is not None and known.node_id != settings.node_id:
        raise IdentityError(
            f"The data directory belongs to node {known.node_id}, not to node {settings.node_id}."
        )
    if known is not None and state.has_journal:
        return known
    requested = requested_settings(settings, state)
    first = FirstStart(
        listen=requested.listen,
        advertised=_advertised(requested),
        rack=requested.rack,
        kafka_listen=_kafka_listen(requested),
        kafka_advertise=requested.kafka_advertise,
        voters=requested.voters,
        join=requested.join,
        replaces=requested.replace is not None,
    )
    if known is not None and known.first_start == first:
        return known
    directory_id = known.directory_id if known else randomness.token(DIRECTORY_ID_BYTES).hex()
    identity = Identity(directory_id, settings.node_id, first)
    disk.replace(IDENTITY_FILE, msgspec.json.encode(identity))
    return identity


def remember(disk: Disk, settings: NodeSettings) -> None:
    """Keep addresses and rack for later starts without them. Blocks. Raises DiskError.

    A full disk does not prevent the start. Addresses and rack are then not kept, which is logged.

    Call this once the node has started with them, and has its journal. A mistyped address is then
    not remembered, and from now on a missing journal is a loss.
    """
    content = msgspec.json.encode(
        Remembered(
            listen=settings.listen,
            advertised=_advertised(settings),
            rack=settings.rack,
            kafka_listen=_kafka_listen(settings),
            kafka_advertise=settings.kafka_advertise,
        )
    )
    if read_small_file(disk, REMEMBERED_FILE, FILE_BYTES_MAX) == content:
        return
    try:
        disk.replace(REMEMBERED_FILE, content)
    except DiskFullError as error:
        logger.warning("addresses and rack are not remembered for the next start: %s", error)


def last_address(disk: Disk, identity: Identity) -> str:
    """Where other nodes reached the directory's node last, `host:port`. Blocks. Raises
    IdentityError, DiskError."""
    content = read_small_file(disk, REMEMBERED_FILE, FILE_BYTES_MAX)
    found: Remembered = identity.first_start
    if content is not None:
        found = _decode(content, Remembered, REMEMBERED_FILE)
    address = found.advertised or found.listen
    if address is None:
        raise IdentityError("The directory does not say where its node was reached.")
    return address


def load_cluster_id(disk: Disk) -> str | None:
    """The cluster of the directory's node. None before the node knew. Blocks.

    The metadata also names the cluster. A restarted voter finds out only from other nodes how much
    of its log is committed, and must know beforehand whether they are of its cluster. Raises
    IdentityError, DiskError.
    """
    content = read_small_file(disk, CLUSTER_FILE, FILE_BYTES_MAX)
    return None if content is None else _decode(content, _Cluster, CLUSTER_FILE).cluster_id


def note_cluster_id(disk: Disk, cluster_id: str) -> None:
    """Keep the cluster's id from the metadata. Blocks. Raises DiskError. A full disk does not stop
    the node, and the next start tries again."""
    content = msgspec.json.encode(_Cluster(cluster_id))
    if read_small_file(disk, CLUSTER_FILE, FILE_BYTES_MAX) == content:
        return
    try:
        disk.replace(CLUSTER_FILE, content)
    except DiskFullError as error:
        logger.warning("the cluster's id is not kept: %s", error)


def warn_if_shared(root: Path) -> None:
    """Warn if other users of the machine can enter the data directory. Raises OSError.

    New directories are made only for their owner. The mode of an existing directory stays, as it
    may be an operator's decision, such as a group for backups.
    """
    mode = stat.S_IMODE(root.stat().st_mode)
    if mode & 0o077:
        logger.warning(
            "other users of this machine have access to the data directory %s (mode %03o): "
            "run `chmod -R go= %s`, unless that is meant",
            root,
            mode,
            root,
        )


def remembered_settings(
    data_dir: Path, *, listen: str | None = None, kafka_listen: str | None = None
) -> dict[str, Any]:
    """The settings remembered by a data directory, by name. None if new or missing.

    They override the defaults, and every other source overrides them. `listen` and `kafka_listen`
    are the given addresses, if any. A changed address makes the remembered advertised address
    useless. Read by path, because the settings are needed before the node locks its directory.
    Raises IdentityError and OSError.
    """
    content = _read_path(data_dir / IDENTITY_FILE)
    if content is None:
        return {}
    identity = _decode(content, Identity, IDENTITY_FILE)
    remembered: Remembered = identity.first_start
    content = _read_path(data_dir / REMEMBERED_FILE)
    if content is not None:
        remembered = _decode(content, Remembered, REMEMBERED_FILE)
    found = {
        "node_id": identity.node_id,
        "listen": remembered.listen,
        "advertised": remembered.advertised,
        "rack": remembered.rack,
        "kafka_listen": remembered.kafka_listen,
        "kafka_advertise": remembered.kafka_advertise,
    }
    if listen is not None and listen != remembered.listen:
        found["advertised"] = None
    if kafka_listen is not None and kafka_listen != remembered.kafka_listen:
        found["kafka_advertise"] = None
    return {name: value for name, value in found.items() if value is not None}


def _advertised(settings: NodeSettings) -> str | None:
    own = settings.own_voter()
    return own.address if settings.advertised is None and own is not None else settings.advertised


def _kafka_listen(settings: NodeSettings) -> str | None:
    return None if settings.kafka_listen_address() is None else settings.kafka_listen


def _read_path(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _decode(content: bytes, kind: type[_S], name: str) -> _S:
    try:
        return json_decoder(kind).decode(content)
    except msgspec.DecodeError as error:
        raise IdentityError(f"{name} in the data directory is damaged: {error}") from error
