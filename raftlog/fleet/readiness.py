"""Waits until nodes are ready, with a deadline, progress lines, and an early failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from raftlog.cluster.membership import NO_ANSWER, Probes
from raftlog.fleet.drivers.driver import Tell, Watched
from raftlog.fleet.errors import FleetError

READY_TIMEOUT_S: Final = 600.0
"""Seconds for a started node. It is ready once its replicas were in sync, after a long copy."""
POLL_S: Final = 0.1
REPORT_S: Final = 10.0
CHECK_S: Final = 2.0
FAILURES_MAX: Final = 5
"""Checks in a row that find a silent node without a process. Its supervisor has restarted it
between the checks, in vain."""


async def await_ready(
    addresses: Mapping[int, str], nodes: Watched, tell: Tell, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """Wait until each node, by id, is ready at its address.

    Raises FleetError with the end of a node's log after the timeout, or once a node does not stay
    up.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    check_s, report_s = loop.time() + CHECK_S, loop.time() + REPORT_S
    failed: dict[int, int] = {}
    probes = Probes()
    try:
        while True:
            answers = await asyncio.gather(*map(probes.why_not_ready, addresses.values()))
            reasons = {
                node_id: why
                for node_id, why in zip(addresses, answers, strict=True)
                if why is not None
            }
            if not reasons:
                return
            now_s = loop.time()
            if now_s >= check_s:
                check_s = now_s + CHECK_S
                await _check_processes(reasons, nodes, failed)
            if now_s >= report_s:
                report_s = now_s + REPORT_S
                tell(f"waiting for {_listed(reasons)}")
            if now_s >= deadline_s:
                raise FleetError(
                    f"not ready within {timeout_s:.0f} s: {_listed(reasons)}; node {min(reasons)}: "
                    f"{await nodes.log_end(min(reasons))}"
                )
            await asyncio.sleep(POLL_S)
    finally:
        await probes.close()


async def _check_processes(
    reasons: Mapping[int, str], nodes: Watched, failed: dict[int, int]
) -> None:
    for node_id, reason in reasons.items():
        why = await nodes.failure(node_id) if reason == NO_ANSWER else None
        failed[node_id] = 0 if why is None else failed.get(node_id, 0) + 1
        if why is not None and failed[node_id] >= FAILURES_MAX:
            raise FleetError(f"node {node_id} does not stay up: {why}")


def _listed(reasons: Mapping[int, str]) -> str:
    return "; ".join(f"node {node_id}: {why}" for node_id, why in sorted(reasons.items()))
