"""The permit decides whether this node may act as the leader of its partitions now.

A node may act as a leader while all four conditions hold. Each has one source of its facts.

==============  ==================================================  ===========================
condition       holds while                                         facts from
==============  ==================================================  ===========================
registration    this start is registered                            `registered`
lease           the lease is valid, or no other node could lead     heartbeats, quorum voters
disk            no disk trouble keeps the node from the metadata    `DiskWatch`
applied index   without disk trouble, or with the controller's      heartbeats, quorum
                newest known index applied
==============  ==================================================  ===========================

The permit is checked at the write and at each commit, not signalled. A process that was stopped
finds its waiting requests before any timer ends its lease (promise 7).
"""

from __future__ import annotations

from raftlog.controller.sessions import Lease
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.storage.disk_health import DiskTrouble
from raftlog.world import Clock


class LeadPermit:
    """The permit of one node, for all its led partitions. Lives in the event loop."""

    def __init__(
        self, *, quorum: RaftMember[ApplyResult], clock: Clock, broker_id: BrokerId
    ) -> None:
        self._quorum = quorum
        self._clock = clock
        self._broker_id = broker_id
        self._broker_epoch: BrokerEpoch | None = None
        self._lease = Lease()
        self._is_rejected = False
        self._known_index = -1
        self._disk_trouble: DiskTrouble | None = None
        self._stall: DiskTrouble | None = None
        self._has_withheld = False

    def may_act(self) -> bool:
        """Whether this node may act as the leader of its led partitions at this moment."""
        # Disk trouble is not left to the next observation. A stopped process may have missed some.
        may_act = (
            self.has_lease(self._clock.monotonic())
            and self._stall is None
            and (self._disk_trouble is None or self._quorum.applied_index >= self._known_index)
        )
        if not may_act:
            self._has_withheld = True
        return may_act

    def has_lease(self, now: float) -> bool:
        """Whether the lease allows this node to lead at the given monotonic time."""
        if self._broker_epoch is None:
            return False
        return self._lease.is_valid(now) or self._decides_alone()

    @property
    def is_cut_off(self) -> bool:
        """Whether the lease forbids this node to act as a leader at this moment."""
        return not self.has_lease(self._clock.monotonic())

    def _decides_alone(self) -> bool:
        """Whether no other node could ever take over the led partitions."""
        if not self._quorum.is_active or self._is_rejected:
            return False
        voters = self._quorum.voters
        return len(voters.voters) == 1 and voters.find(self._broker_id) is not None

    # Registration and lease

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        """The registered incarnation of this node. None before the registration."""
        return self._broker_epoch

    @property
    def is_rejected(self) -> bool:
        """Whether the cluster has rejected the registered incarnation."""
        return self._is_rejected

    @property
    def lease(self) -> Lease:
        """The lease of the registered incarnation."""
        return self._lease

    @property
    def known_index(self) -> int:
        """The newest index that a responding controller had applied, -1 before any response."""
        return self._known_index

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Start with this incarnation, which has no lease yet."""
        self._broker_epoch = broker_epoch
        self._lease = Lease()
        self._is_rejected = False

    def rejected(self) -> None:
        """End the lease, as the cluster has rejected the registered incarnation."""
        self._is_rejected = True
        self._lease = Lease()

    def controller_applied(self, index: int) -> None:
        """Note the index that a controller had applied when it answered a heartbeat."""
        self._known_index = max(self._known_index, index)

    # Disk

    @property
    def stall(self) -> DiskTrouble | None:
        """The disk trouble that keeps this node from applying the metadata, or None."""
        return self._stall

    def disk_observed(self, trouble: DiskTrouble | None, stall: DiskTrouble | None) -> None:
        """Note the observed disk trouble, and the trouble that keeps the metadata back."""
        self._disk_trouble = trouble
        self._stall = stall

    # Withheld commits

    @property
    def has_withheld(self) -> bool:
        """Whether `may_act` was False since the last `withheld_notified`."""
        return self._has_withheld

    def withheld_notified(self) -> None:
        """Note that the partitions are about to hear of the present permit."""
        self._has_withheld = False
