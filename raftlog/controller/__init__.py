"""The controller knows which brokers are alive, and reacts when a broker is not.

Purpose: every node sends heartbeats to the active controller (the node with the active quorum
member), and the responses grant the node's lease, the time for which it may act as a leader. The
active controller fences brokers without a live session, unfences brokers that are back, and keeps
partitions led, only by commands through the quorum.

Rules: decisions are pure and receive the time as an argument (`sessions`, `partition_work`). The
rest reads only `world.Clock`. A lease ends before the controller may fence its holder (DESIGN.md).
Each command is proposed only while this node is the active controller, one after the other, and
names the epochs of the decision. A failed decision ends the node.

Must not know: records, logs, the use of a lease, HTTP.
"""

from raftlog.controller.messages import RefusalReason
from raftlog.controller.service import ControllerService

__all__ = ["ControllerService", "RefusalReason"]
