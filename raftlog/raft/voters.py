"""The set of voters, its changes, and its form in the log. Pure.

A set changes by one voter at a time only. Then any majority of the old set and any of the new have
a voter in common (Ongaro, "Consensus, Bridging Theory and Practice", 2014, section 4.1).
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

import msgspec

from raftlog.record.decoders import json_decoder
from raftlog.record.errors import ILLEGAL_STATE, STORAGE_FAILED, LogError

VOTERS_MAX: Final = 9
"""Voters in a set. Nine voters survive four dead voters, and a further voter only slows each
commit."""
NODE_ID_MAX: Final = 2**31 - 1
HOST_LENGTH_MAX: Final = 255

_ENTRY = re.compile(
    r"(?P<id>[0-9]{1,10})@(?P<host>\[[0-9a-fA-F:.]+\]|[^\s@:\[\],]+):(?P<port>[0-9]{1,5})"
)


class Voter(msgspec.Struct, frozen=True):
    """One voter, and its listener for peers.

    `directory_id` is the identity of its data directory. It is None until it is known, as for the
    voters that a cluster was started with.
    """

    node_id: Annotated[int, msgspec.Meta(ge=1, le=NODE_ID_MAX)]
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=HOST_LENGTH_MAX)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    directory_id: str | None = None

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class VoterSet(msgspec.Struct, frozen=True):
    """The voters, ascending by node id, each once. At most VOTERS_MAX.

    Empty only as `NO_VOTERS`, for a node that has not joined yet. A set in the log never is.
    """

    voters: tuple[Voter, ...]

    def __post_init__(self) -> None:
        if len(self.voters) > VOTERS_MAX:
            raise ValueError(f"{len(self.voters)} voters are more than the limit of {VOTERS_MAX}")
        ids = [voter.node_id for voter in self.voters]
        if ids != sorted(set(ids)):
            raise ValueError("voters must be ascending by node id, each once")

    @property
    def ids(self) -> frozenset[int]:
        """The voters' node ids."""
        return frozenset(voter.node_id for voter in self.voters)

    @property
    def majority(self) -> int:
        """Votes needed to decide. No number of nodes is a majority of no voters."""
        return len(self.voters) // 2 + 1

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each voter, in the order of their ids."""
        return tuple(voter.address for voter in self.voters)

    def find(self, node_id: int) -> Voter | None:
        """The voter of that id, or None."""
        for voter in self.voters:
            if voter.node_id == node_id:
                return voter
        return None

    def add(self, voter: Voter) -> VoterSet:
        """Return the set with the voter added. Raises LogError(ILLEGAL_STATE)."""
        if self.find(voter.node_id) is not None:
            raise LogError(ILLEGAL_STATE, f"Node {voter.node_id} is a voter already.")
        if len(self.voters) >= VOTERS_MAX:
            raise LogError(
                ILLEGAL_STATE,
                f"There are {VOTERS_MAX} voters, which is the limit: remove one first.",
            )
        return VoterSet(tuple(sorted((*self.voters, voter), key=lambda each: each.node_id)))

    def remove(self, node_id: int) -> VoterSet:
        """Return the set with the voter removed. Raises LogError(ILLEGAL_STATE)."""
        if self.find(node_id) is None:
            raise LogError(ILLEGAL_STATE, f"Node {node_id} is not a voter.")
        if len(self.voters) == 1:
            raise LogError(
                ILLEGAL_STATE, f"Node {node_id} is the only voter: a cluster needs at least one."
            )
        return VoterSet(tuple(voter for voter in self.voters if voter.node_id != node_id))


NO_VOTERS: Final = VoterSet(())


def few_voters_warning(voters: VoterSet, nodes: int) -> str | None:
    """Return a warning if so many nodes depend on one or two voters, or None.

    Three votes are the fewest with which a cluster survives the loss of any node.
    """
    votes = len(voters.voters)
    if nodes < 3 or votes not in (1, 2):
        return None
    names = " or ".join(f"node {voter.node_id}" for voter in voters.voters)
    return (
        f"{votes} of {nodes} nodes {'has' if votes == 1 else 'have'} a vote: the whole cluster "
        f"stops with {names}. Give votes to {3 - votes} more by `raftlog quorum add-voter N`"
    )


def encode_voters(voters: VoterSet) -> bytes:
    """Encode the set for the log as JSON."""
    return msgspec.json.encode(voters)


def decode_voters(content: bytes) -> VoterSet:
    """Decode a set of `encode_voters`. Raises LogError(STORAGE_FAILED) for any other bytes."""
    try:
        voters = json_decoder(VoterSet).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)
    else:
        if voters.voters:
            return voters
        reason = "it has no voters"
    raise LogError(
        STORAGE_FAILED,
        f"The metadata log has a set of voters that this release does not understand: {reason}.",
    )


def parse_voters(text: str) -> VoterSet:
    """Parse a user's `1@host:port,2@host:port`. Raises ValueError with a text for the user."""
    voters: dict[int, Voter] = {}
    addresses: set[tuple[str, int]] = set()
    for part in text.split(","):
        found = _ENTRY.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                f"'{part.strip()}' is not a voter: write ID@HOST:PORT, as in 1@a.lan:8082"
            )
        node_id, host, port = int(found["id"]), found["host"].strip("[]"), int(found["port"])
        if not 1 <= node_id <= NODE_ID_MAX:
            raise ValueError(f"node id {node_id} is not from 1 to {NODE_ID_MAX}")
        if not 1 <= port <= 65_535:
            raise ValueError(f"port {port} of node {node_id} is not from 1 to 65535")
        if len(host) > HOST_LENGTH_MAX:
            raise ValueError(f"the host of node {node_id} is longer than {HOST_LENGTH_MAX}")
        if node_id in voters:
            raise ValueError(f"node {node_id} is named twice")
        if (host.lower(), port) in addresses:
            raise ValueError(f"two voters have the address {host}:{port}")
        voters[node_id] = Voter(node_id, host, port)
        addresses.add((host.lower(), port))
    return VoterSet(tuple(voters[node_id] for node_id in sorted(voters)))


def bootstrap_id(voters: VoterSet) -> str:
    """A digest of ids and addresses, the same on all nodes with the same list."""
    lines = "".join(f"{voter.node_id}@{voter.address.lower()}\n" for voter in voters.voters)
    return hashlib.sha256(lines.encode()).hexdigest()[:32]
