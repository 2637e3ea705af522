"""The choice of a replica for a read, by the members' positions. Pure.

| policy | replica | with tokens |
|---|---|---|
| any | each in turn | spreads reads, waits for the slower ones |
| most_updated | furthest in the log | waits least |
| most_lagging | last in the log | waits most: for comparison only |

No policy alone makes a client's reads monotonic. Positions are as old as a heartbeat, so the chosen
replica may be far behind another one that answered the client before; and a member comes or goes at
any time. `session(token)` makes the reads monotonic with every policy: the chosen replica waits.
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
        """The member for the next read, as `Replicated.members` lists them; None without any.

        Members without an endpoint are passed over. Among equal positions, the lowest id counts.
        """
        found = sorted(
            (one for one in members if one.endpoint is not None), key=lambda one: one.replica_id
        )
        if not found:
            return None
        match self.policy:
            case "most_updated":
                return max(found, key=lambda one: one.position)
            case "most_lagging":
                return min(found, key=lambda one: one.position)
            case "any":
                after = [one for one in found if one.replica_id > self._last]
                chosen = (after or found)[0]
                self._last = chosen.replica_id
                return chosen
            case _:
                assert_never(self.policy)
