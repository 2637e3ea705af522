"""A permit to lead that a test switches by itself, without a controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from raftlog.controller.lead_permit import LeadPermit
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.world.time import SystemClock


class SwitchedPermit(LeadPermit):
    """A permit with its two conditions as callables."""

    def __init__(
        self,
        may_act: Callable[[], bool] = lambda: True,
        is_registered: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(quorum=cast("Any", None), clock=SystemClock(), broker_id=BrokerId(1))
        self._acts = may_act
        self._registers = is_registered

    def may_act(self) -> bool:
        return self._acts()

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        return BrokerEpoch(1) if self._registers() else None
