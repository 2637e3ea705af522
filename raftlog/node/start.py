"""A start begins a cluster, joins a cluster, or restarts. Pure.

| the directory | --voters | --join | the start |
|---|---|---|---|
| has a journal | checked | checked | Restart, the journal knows the voters (`check_restart`) |
| none | given | | Begin with these voters |
| none | | given | Join; with --replace after taking the lost node's place |
| none, but an unfinished first start | | | as the unfinished start requested |
| none | | | Begin a cluster of this node alone |

A restart with the options of the first start continues, whatever happened to the voters since.
Other options are compared with the voters in the journal, by node id, as addresses may change:

| the voters in the journal | --voters names | --join names |
|---|---|---|
| any | the voters of the first start, or those in the journal: continue | |
| this node alone | other voters: refuse, the list is another cluster's | another node: refuse |
| others, not this node | also this node: refuse, it has no vote | any: continue |
| several | no other voter in common: refuse | a voter's address: continue |
| several | anything else: warn, the journal counts | another address: warn |

The only voter of a cluster knows its voters for certain, as no other node can have changed them.
Every other journal may be behind, and must not refuse an operator's newer list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.node.directory import DirectoryState, Identity, requested_settings
from raftlog.node.settings import NodeSettings, split_address
from raftlog.raft.voters import Voter, VoterSet, parse_voters


class StartError(ValueError):
    """The node cannot start with these settings. `str()` names the change to make."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a cluster with these voters, this node among them. None: this node alone, at its
    advertised address."""

    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class Join:
    """Join, as an observer, the cluster of any of these nodes (`host:port`)."""

    addresses: tuple[str, ...]
    replaces: bool = False
    """Whether the node takes the place of a lost one of its id."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Resume from the data directory."""

    began_alone: bool
    """Whether the directory's node began its cluster alone, and may have made the secret."""


Start: TypeAlias = Begin | Join | Restart


def decide_start(settings: NodeSettings, state: DirectoryState) -> Start:
    """The kind of this start. Raises StartError. Changes nothing."""
    try:
        settings.check()
        if state.identity is not None and state.has_journal:
            return Restart(_began_alone(state.identity))
        return _first_start(requested_settings(settings, state))
    except StartError:
        raise
    except ValueError as error:
        raise StartError(str(error)) from error


def check_restart(
    settings: NodeSettings, identity: Identity, voters: VoterSet, cluster_id: str | None
) -> str | None:
    """Compare the options of a restart with the voters in the journal. Returns a warning about
    ignored options, if any. Raises StartError for a contradiction."""
    first = identity.first_start
    if settings.voters is not None:
        return _check_voters(settings, first.voters, voters, cluster_id)
    if settings.join is not None and first.join is None:
        return _check_join(settings, first.voters, voters, cluster_id)
    return None


def needs_secret(start: Start) -> bool:
    """Whether the cluster has, or may have, other nodes, whose secret this node needs."""
    match start:
        case Begin(voters=voters):
            return voters is not None and len(voters.voters) > 1
        case Join():
            return True
        case Restart(began_alone=began_alone):
            return not began_alone


def _check_voters(
    settings: NodeSettings, first: str | None, voters: VoterSet, cluster_id: str | None
) -> str | None:
    given = settings.voter_set()
    assert given is not None
    begun_with = frozenset[int]() if first is None else parse_voters(first).ids
    if given.ids in (voters.ids, begun_with):
        return None
    me = settings.node_id
    asked = f"--voters asks for the voters {_numbers(given.ids)}"
    is_own_wish = me in given.ids and me not in voters.ids
    has_common = bool(given.ids & (voters.ids | begun_with) - {me})
    if voters.ids != {me} and not is_own_wish and has_common:
        return (
            f"{asked}, but those of the cluster are {_numbers(voters.ids)}: --voters counts at the "
            "first start only. `raftlog quorum add-voter` and `remove-voter` change them"
        )
    raise StartError(_contradiction(me, voters, cluster_id, asked, "--voters"))


def _check_join(
    settings: NodeSettings, first: str | None, voters: VoterSet, cluster_id: str | None
) -> str | None:
    addresses = frozenset(settings.join_addresses())
    known = {settings.listen, *voters.addresses}
    if settings.advertised is not None:
        known.add(settings.advertised)
    if first is not None:
        known.update(parse_voters(first).addresses)
    if addresses & known:
        return None
    me = settings.node_id
    asked = f"--join asks to enter the cluster of {', '.join(sorted(addresses))}"
    if voters.ids == {me}:
        raise StartError(_contradiction(me, voters, cluster_id, asked, "--join"))
    return (
        f"{asked}, but this node has been in a cluster with the voters {_numbers(voters.ids)}, and "
        "goes on there: --join counts at the first start only"
    )


def _contradiction(
    me: int, voters: VoterSet, cluster_id: str | None, asked: str, option: str
) -> str:
    cluster = "its cluster" if cluster_id is None else f"cluster {cluster_id}"
    if voters.ids == {me}:
        has = f"{cluster}, in which this node has the only vote"
    else:
        has = f"{cluster} with the voters {_numbers(voters.ids)}"
    return (
        f"the data directory is node {me} of {has}; {asked}. To go on with the directory's "
        f"cluster, start without {option} (`raftlog quorum add-voter N` gives a vote to a node "
        "that has joined). For another cluster, give an empty --data-dir"
    )


def _numbers(node_ids: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))


def _first_start(settings: NodeSettings) -> Begin | Join:
    if settings.join is not None:
        addresses = settings.join_addresses()
        hosts = [split_address(address)[0] for address in addresses]
        _check_reachable(settings, from_elsewhere=not all(map(_is_loopback, hosts)))
        return Join(addresses, replaces=settings.replace is not None)
    if settings.replace is not None:
        raise StartError(
            f"--replace {settings.replace} needs --join HOST:PORT[,HOST:PORT], the addresses of "
            "live nodes of the cluster, and not --voters"
        )
    voters = settings.voter_set()
    if voters is not None:
        own = voters.find(settings.node_id)
        if own is None:
            listed = ", ".join(str(voter.node_id) for voter in voters.voters)
            raise StartError(
                f"node {settings.node_id} is not among the voters given ({listed}): set --node-id, "
                "or start it with --join instead, as a node without a vote"
            )
        _check_own_address(settings, own)
        _check_reachable(settings, from_elsewhere=not _is_loopback(own.host))
    return Begin(voters)


def _check_own_address(settings: NodeSettings, own: Voter) -> None:
    """Refuse an own address in --voters that the other voters could not reach."""
    said = own.address
    if settings.advertised is not None:
        if settings.advertised_address(port=0) != (own.host, own.port):
            raise StartError(
                f"--voters says that node {own.node_id} is found at {said}, "
                f"--advertised says {settings.advertised}"
            )
    elif settings.listen_address()[1] != own.port:
        raise StartError(
            f"--voters says that node {own.node_id} is found at {said}, but it would listen on "
            f"{settings.listen}: give --listen HOST:{own.port}, or, if one port is forwarded to "
            f"the other, --advertised {said}"
        )


def _check_reachable(settings: NodeSettings, *, from_elsewhere: bool) -> None:
    """Refuse a loopback address if the cluster has nodes on other machines."""
    host, port = settings.listen_address()
    if not from_elsewhere or settings.advertised is not None or not _is_loopback(host):
        return
    raise StartError(
        f"the cluster has nodes on other machines, which cannot reach {settings.listen}: give "
        f"--listen 0.0.0.0:{port} (and --advertised, if they know this machine by another name), "
        "or, behind a proxy on this machine, --advertised alone"
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _began_alone(identity: Identity) -> bool:
    first = identity.first_start
    if first.join is not None:
        return False
    return first.voters is None or "," not in first.voters
