"""A read goes to a replica chosen by the members' positions. Pure.

| policy | replica | with tokens |
|---|---|---|
| any | each in turn | spreads reads, waits for slower replicas |
| most_updated | furthest in the log | waits least |
| most_lagging | last in the log | waits most, for comparison only |

No policy by itself makes a client's reads monotonic. Positions are as old as a heartbeat, so the
chosen replica may be far behind another replica that served the client before. A member comes or
goes at any time. `session(token)` makes the reads monotonic with every policy, as the chosen
replica waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, assert_never, get_args

from raftlog_replicated.types import Member

Policy: TypeAlias = Literal["any", "most_updated", "most_lagging"]
POLICIES: Final = get_args(Policy)


class Router:
    """Chooses members of one state for the reads of one process."""

    def __init__(self, policy: Policy = "any") -> None:
        """Raises ValueError for another policy."""
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        self.policy = policy
        self._last = ""
        """The replica of the last choice in turn."""

    def choose(self, members: Iterable[Member]) -> Member | None:
        """The member for the next read, as `Replicated.members` lists them. None without members.
        Members without an endpoint are passed over. Among equal positions, the lowest id counts."""
        found = sorted(
            (member for member in members if member.endpoint is not None),
            key=lambda member: member.replica_id,
        )
        if not found:
            return None
        match self.policy:
            case "most_updated":
                return max(found, key=lambda member: member.position)
            case "most_lagging":
                return min(found, key=lambda member: member.position)
            case "any":
                after = [member for member in found if member.replica_id > self._last]
                chosen = (after or found)[0]
                self._last = chosen.replica_id
                return chosen
            case _:
                assert_never(self.policy)
