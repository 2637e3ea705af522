"""The members of a classic group have identities and common protocols. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from raftlog.coordinator.groups.classic.messages import (
    DescribedMember,
    JoinedMember,
    JoinGroup,
    Protocol,
)
from raftlog.coordinator.shard.records import ClassicMember
from raftlog.record.errors import FENCED_INSTANCE_ID, UNKNOWN_MEMBER, LogError, quoted

MEMBER_OVERHEAD_BYTES: Final = 64
"""Bytes of a member in the group's record, besides its strings and bytes."""


@dataclass(slots=True)
class Member:
    """A member with its last JoinGroup, assignment and held request."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    """Assignment of the last stable generation."""
    join_ticket: int | None = None
    sync_ticket: int | None = None
    owes_sync: bool = False
    """Whether the member has this generation and has not sent its sync."""
    protocol_names: frozenset[str] = field(init=False)
    size: int = field(init=False)
    """Bytes in the group's record, with the largest metadata. A character counts as three."""

    def __post_init__(self) -> None:
        self.protocol_names = frozenset(each.name for each in self.protocols)
        strings = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        self.size = (
            MEMBER_OVERHEAD_BYTES
            + 3 * sum(map(len, strings))
            + max((len(each.metadata) for each in self.protocols), default=0)
        )

    @property
    def is_held(self) -> bool:
        """Whether a join or sync of this member is held."""
        return self.join_ticket is not None or self.sync_ticket is not None

    def update(self, request: JoinGroup) -> None:
        """Replace all but the identity by a later request of the member."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        self.session_timeout_ms = request.session_timeout_ms
        self.protocols = request.protocols
        self.__post_init__()

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol, or empty without the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def recorded(self, protocol: str | None, assignment: bytes) -> ClassicMember:
        """The member in the record of a generation."""
        return ClassicMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    def described(self, protocol: str | None, *, is_stable: bool) -> DescribedMember:
        """The member for operators."""
        return DescribedMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            metadata=self.metadata(protocol) if is_stable else b"",
            assignment=self.assignment if is_stable else b"",
        )


def joining(request: JoinGroup, member_id: str) -> Member:
    """The member that a request describes."""
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
    )


def _rebalance_timeout_ms(request: JoinGroup) -> int:
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms > 0 else request.session_timeout_ms


def restored(recorded: ClassicMember, protocol: str | None) -> Member:
    """A member from its record, which has the generation's protocol and no other."""
    return Member(
        member_id=recorded.member_id,
        instance_id=recorded.group_instance_id,
        client_id=recorded.client_id,
        client_host=recorded.client_host,
        rebalance_timeout_ms=recorded.rebalance_timeout_ms,
        session_timeout_ms=recorded.session_timeout_ms,
        protocols=(Protocol(protocol or "", recorded.subscription),),
    )


class Members:
    """Members in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        """Member id of a static member, by instance id."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, member_id: str) -> Member | None:
        """The member of this id, if there is one."""
        return self._members.get(member_id)

    def of_instance(self, instance_id: str | None) -> Member | None:
        """The static member of this instance id, if there is one."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """The author of a request.

        Raises UNKNOWN_MEMBER, or FENCED_INSTANCE_ID if the instance id is of another member.
        """
        static = self.of_instance(instance_id)
        if static is not None and static.member_id != member_id:
            raise LogError(FENCED_INSTANCE_ID)
        member = self._members.get(member_id)
        if member is None or (instance_id is not None and static is None):
            raise LogError(
                UNKNOWN_MEMBER,
                f"The group has no member {quoted(member_id)}: its session ended, or it left. Join "
                "again as a new member.",
            )
        return member

    def put(self, member: Member) -> None:
        """Add a member, or replace the member of its id."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]

    def have_common_protocol(self, newcomer: Member, previous: Member | None) -> bool:
        """Whether all would support a protocol with the newcomer, in place of `previous`."""
        others = (each.protocol_names for each in self if each is not previous)
        return bool(newcomer.protocol_names.intersection(*others))

    def size_with(self, newcomer: Member, previous: Member | None) -> int:
        """Bytes of all members with the newcomer, in place of `previous`."""
        return newcomer.size + sum(each.size for each in self if each is not previous)

    def voted_protocol(self) -> str:
        """The protocol with most votes. Each member votes for its first that all support.

        Of two with equal votes, the protocol voted for first wins. Requires members.
        """
        first, *others = (each.protocol_names for each in self)
        common = first.intersection(*others)
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self
        )
        return max(votes, key=votes.__getitem__)

    def joined(self, protocol: str) -> tuple[JoinedMember, ...]:
        """All members, for their leader."""
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(protocol)) for each in self
        )

    def recorded(
        self, protocol: str | None, assignments: Mapping[str, bytes]
    ) -> tuple[ClassicMember, ...]:
        """All members, for the record of a generation."""
        return tuple(each.recorded(protocol, assignments.get(each.member_id, b"")) for each in self)

    def longest_rebalance_timeout_ms(self) -> int:
        """The time for which a rebalance waits for all members."""
        return max((each.rebalance_timeout_ms for each in self), default=0)
