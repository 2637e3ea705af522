"""How patient the controller is. All nodes of a cluster should be given the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times of heartbeats, sessions and leases; seconds of monotonic time."""

    session_timeout_s: float = 1.5
    """A broker that is silent for so long is fenced."""
    heartbeat_s: float = 0.3
    """Between two heartbeats of a broker."""
    grace_s: float = 1.5
    """After becoming active, a controller fences nobody for being silent. At least the session
    timeout: leases that the controller before has given must have ended (DESIGN.md)."""
    retry_s: float = 0.05
    """Until the next heartbeat, if there was no active controller to take the last one."""
    lease_share: float = 0.9
    """A lease's length, as a share of the session timeout. The rest is a margin: see DESIGN.md."""
    preferred_leaders_s: float | None = 30.0
    """A broker must have been back for so long before it is given leadership back as the preferred
    replica, so that one that comes and goes does not move it each time; None: never."""
    preferred_check_s: float = 10.0
    """Between two looks at what preferred replicas could lead again."""

    def __post_init__(self) -> None:
        assert 0 < self.retry_s <= self.heartbeat_s
        # One lost heartbeat must not cost a lease.
        assert 2 * self.heartbeat_s < self.lease_s
        assert 0 < self.lease_share < 1
        assert self.grace_s >= self.session_timeout_s
        assert self.preferred_leaders_s is None or self.preferred_leaders_s >= 0
        assert self.preferred_check_s > 0

    @property
    def lease_s(self) -> float:
        """How long a node may act as a leader after a heartbeat that was answered."""
        return self.session_timeout_s * self.lease_share

    @property
    def stall_s(self) -> float:
        """A controller that did nothing for longer has been stopped, and could hear nobody."""
        return 2 * self.heartbeat_s
