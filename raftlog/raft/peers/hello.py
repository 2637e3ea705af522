"""The members' hello, its checks, and the voters to dial. Pure.

Both sides make the same checks, each against its knowledge. So a node that no other node dials
still gets the reason of its rejection in the response to its call.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from raftlog.peer.hello import Hello, Name, check_protocol, decode_hello
from raftlog.raft.voters import NODE_ID_MAX, Voter, VoterSet
from raftlog.record.errors import ILLEGAL_STATE, when_directory_is_lost
from raftlog.world.network import RejectedError

CHANNEL: Final = "quorum"
PROTOCOL: Final = 2
"""Version of the messages between members and of the hello. Nodes of different protocols do not
talk."""


class QuorumHello(Hello, frozen=True, kw_only=True):
    """A member's facts, as of the moment a connection opens."""

    channel: str = CHANNEL
    protocol: int = PROTOCOL
    node_id: Annotated[int, msgspec.Meta(ge=0, le=NODE_ID_MAX)]
    directory_id: Name
    """Identity of its data directory."""
    bootstrap_id: Name | None
    """Digest of the list of voters at the node's first start. None without a list."""
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    """`host:port` where other nodes reach it."""
    voters: VoterSet
    """The newest set in its log. NO_VOTERS before it has joined."""


def decode_quorum_hello(content: bytes, channel: str = CHANNEL) -> QuorumHello:
    """Decode the other side's hello.

    Raises RejectedError with ILLEGAL_STATE for another protocol, else BAD_REQUEST.
    """
    return decode_hello(content, QuorumHello, channel, PROTOCOL)


def dial_targets(me: int, me_is_voter: bool, voters: VoterSet) -> tuple[Voter, ...]:
    """The voters that node `me` dials, ascending by id.

    A voter dials the voters of lower id, and every other node dials all voters. So each pair that
    needs a connection has one dialling side. While roles change the two may see the roles
    differently, and either both dial, or neither does for a moment. `channel.keeps_old` settles the
    former, and the next change of view settles the latter.
    """
    return tuple(
        voter
        for voter in voters.voters
        if voter.node_id != me and (not me_is_voter or voter.node_id < me)
    )


def check_hello(
    mine: QuorumHello, theirs: QuorumHello, pinned: str | None, *, live: str | None = None
) -> None:
    """Raise RejectedError(ILLEGAL_STATE) if these two nodes must not talk.

    `pinned` is the data directory pinned here for the other's node id. The newest voter set has
    priority over the pin, as a voter may have been removed and added again while this node was
    away. `live` is the data directory of the node that is connected right now under the same id.
    """
    check_protocol(theirs.protocol, mine.protocol, theirs.software_version)
    _check_cluster(mine, theirs)
    if theirs.node_id == mine.node_id:
        _reject_own_id(mine, theirs)
    _check_directory(mine, theirs, pinned, live)


def _check_cluster(mine: QuorumHello, theirs: QuorumHello) -> None:
    if mine.cluster_id is not None and theirs.cluster_id is not None:
        if mine.cluster_id != theirs.cluster_id:
            _reject(
                f"Node {theirs.node_id} at {theirs.address} belongs to cluster "
                f"{theirs.cluster_id}, node {mine.node_id} at {mine.address} to cluster "
                f"{mine.cluster_id}: check the addresses that they were given."
            )
        return
    if (
        mine.bootstrap_id is not None
        and theirs.bootstrap_id is not None
        and mine.bootstrap_id != theirs.bootstrap_id
    ):
        # Two lists could elect two leaders, each by a majority of its list.
        _reject(
            f"Nodes {mine.node_id} and {theirs.node_id} were started with different lists of "
            "voters: give all of them the same."
        )
    for alone, new in ((mine, theirs), (theirs, mine)):
        _check_alone(alone, new)


def _check_alone(alone: QuorumHello, new: QuorumHello) -> None:
    """Keep a new cluster's voter apart from a listed node that already forms a cluster.

    Otherwise the new voter would follow that cluster, which has one vote instead of the listed
    votes.
    """
    is_new_voter = new.cluster_id is None and new.bootstrap_id is not None
    is_alone = alone.cluster_id is not None and alone.voters.ids == {alone.node_id}
    if is_new_voter and is_alone and alone.bootstrap_id != new.bootstrap_id:
        _reject(
            f"Node {alone.node_id} at {alone.address} is cluster {alone.cluster_id}, in which it "
            f"has the only vote, and node {new.node_id} at {new.address} was started as a voter of "
            f"a new cluster. Start node {new.node_id} with an empty directory and --join to enter "
            f"that cluster, or node {alone.node_id} with an empty directory and the same --voters."
        )


def _reject_own_id(mine: QuorumHello, theirs: QuorumHello) -> None:
    if theirs.directory_id == mine.directory_id:
        _reject(
            f"At {theirs.address} answers node {mine.node_id}, which is this very node or one "
            "with a copy of its data directory: check the addresses, and never start a copy."
        )
    _reject(
        f"Node id {mine.node_id} is in use twice, at {mine.address} and at {theirs.address}: give "
        "one of them another id."
    )


def _check_directory(
    mine: QuorumHello, theirs: QuorumHello, pinned: str | None, live: str | None
) -> None:
    listed = mine.voters.find(theirs.node_id)
    known = pinned if listed is None or listed.directory_id is None else listed.directory_id
    if known != theirs.directory_id and live not in (None, theirs.directory_id):
        _reject(
            f"Node id {theirs.node_id} is in use twice: such a node is connected, and another one "
            f"at {theirs.address} has another data directory. Give that one another id."
        )
    if known not in (None, theirs.directory_id):
        _reject(
            f"Node {theirs.node_id} at {theirs.address} has another data directory than before: "
            "its disk was wiped, or another node uses its id. Give it its old directory back or "
            f"another id. {when_directory_is_lost(theirs.node_id)} If that was done while "
            f"node {mine.node_id} was away, and node {theirs.node_id} leads: transfer leadership."
        )
    # The same check of this node, as the other sees it, for nodes that never dial themselves.
    seen = theirs.voters.find(mine.node_id)
    if seen is not None and seen.directory_id not in (None, mine.directory_id):
        _reject(
            f"The cluster knows node {mine.node_id} at {mine.address} with another data directory: "
            "its disk was wiped, or another node has that id. Give it its old directory back or "
            f"another id. {when_directory_is_lost(mine.node_id)}"
        )


def _reject(message: str) -> None:
    raise RejectedError(ILLEGAL_STATE.code, message)
