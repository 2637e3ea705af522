"""The kind of a start: begin a cluster, join one, or restart. Pure.

| the directory | --voters | --join | the start |
|---|---|---|---|
| has a journal | ignored | ignored | Restart: the journal knows the voters |
| none | given | | Begin with these voters |
| none | | given | Join |
| none, but an unfinished first start | | | as the unfinished start requested |
| none | | | Begin a cluster of this node alone |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.node.directory import DirectoryState, Identity, requested_settings
from raftlog.node.settings import NodeSettings, split_address
from raftlog.raft.voters import Voter, VoterSet


class StartError(ValueError):
    """The node cannot start with these settings. `str()` names the change to make."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a cluster with these voters, this node among them.

    None: this node alone, at its advertised address.
    """

    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class Join:
    """Join, as an observer, the cluster of any of these nodes (`host:port`)."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """Resume from the data directory."""

    began_alone: bool
    """Whether the directory's node began its cluster alone, so that it may have made the secret."""


Start: TypeAlias = Begin | Join | Restart


def decide_start(settings: NodeSettings, state: DirectoryState) -> Start:
    """The kind of this start. Raises StartError; changes nothing."""
    try:
        settings.check()
        if state.identity is not None and state.has_journal:
            return Restart(_began_alone(state.identity))
        return _first_start(requested_settings(settings, state))
    except StartError:
        raise
    except ValueError as error:
        raise StartError(str(error)) from error


def needs_secret(start: Start) -> bool:
    """Whether the cluster has, or may have, other nodes, so that this one must be given their
    secret."""
    match start:
        case Begin(voters=voters):
            return voters is not None and len(voters.voters) > 1
        case Join():
            return True
        case Restart(began_alone=began_alone):
            return not began_alone


def _first_start(settings: NodeSettings) -> Begin | Join:
    if settings.join is not None:
        addresses = settings.join_addresses()
        hosts = [split_address(address)[0] for address in addresses]
        _check_reachable(settings, from_elsewhere=not all(map(_is_loopback, hosts)))
        return Join(addresses)
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
    """The other voters connect to the address in the list, so the node must listen there."""
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
    """The default address serves this machine alone: right for a trial, a trap for a cluster."""
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
