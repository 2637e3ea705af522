"""The controller: who is alive, and what the cluster does about it.

Purpose: every node tells the active controller (the node whose quorum member is active) that it is
there, by heartbeats, and knows from the answers for how long it may act as a leader (its lease).
The active controller fences brokers that are silent or dead, lets them serve again when they are
back, and sees to it that partitions have leaders: by commands through the quorum, never otherwise.

Rules: what decides is pure, and is told the time (`sessions`, `departures`, `lease`, `work`);
the rest asks `world.Clock` only. A lease ends before the controller may fence its holder: see
DESIGN.md. Each command is proposed only while this node is the active controller, one after the
other, and names the epochs it was decided on. A failure of a decision ends the node.

Must not know: records, logs, what a lease is used for, HTTP.
"""

from raftlog.controller.messages import RefusalReason
from raftlog.controller.service import ControllerService

__all__ = ["ControllerService", "RefusalReason"]
