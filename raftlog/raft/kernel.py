"""Adapter for pysyncobj, and the only module with its import or its private names.

Raft's kernel is pysyncobj's `SyncObj`. It keeps terms and votes, holds elections, advances the
commit index, compares and adds entries, and steps down without a majority. `PySyncObjKernel` adds
typed state and typed messages, and replaces the unsafe parts by methods of the subclass
(`RaftCore`). Methods are replaced on the instance, and state is reached by mangled names. Only one
version makes this safe, so the version is pinned, and every name relied on is checked at import or
in every new kernel.

The module `pysyncobj.syncobj` is loaded a second time under a private name, and only that copy is
changed. Other users of pysyncobj in the process have the original. The copy's functions take clock
and randomness from the globals of their module. Here these come from the kernel that is entered
(`Scoped`). One event loop runs all kernels of a process, and no call into a kernel awaits, so at
most one kernel is entered at a time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from pysyncobj.node import Node

from raftlog.raft.log.journal import LogEntry
from raftlog.raft.log.log import RaftLog
from raftlog.raft.messages import Append, AppendAnswer, RequestVote
from raftlog.raft.rules import Timing
from raftlog.world import Clock, Randomness

PYSYNCOBJ_VERSION: Final = "0.3.17"
_COPY: Final = "pysyncobj.syncobj_of_raftlog"

METHODS_RELIED_ON: Final = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__deleteEntriesFrom",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getCurrentLogIndex",
    "_SyncObj__getCurrentLogTerm",
    "_SyncObj__getEntries",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__onMessageReceived",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__sendNextNodeIdx",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_SyncObj__tryLogCompaction",
    "_checkCommandsToApply",
    "_onTick",
    "doTick",
)
"""Names checked at import."""
ATTRIBUTES_RELIED_ON: Final = (
    "_SyncObj__connectedNodes",
    "_SyncObj__lastResponseTime",
    "_SyncObj__needLoadDumpFile",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__otherNodes",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__readonlyNodes",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
    "_SyncObj__votesCount",
)
"""Names checked in every new kernel."""
_FOLLOWER: Final = 0
"""pysyncobj's number of the follower's role."""


class Scoped(AbstractContextManager[None]):
    """Gives one kernel's clock and randomness to the module during a `with`."""

    __slots__ = ("clock", "randomness")

    active: Scoped | None = None

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self.clock = clock
        self.randomness = randomness

    def __enter__(self) -> None:
        assert Scoped.active is None, "two cores at once"
        Scoped.active = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        Scoped.active = None


def _monotonic() -> float:
    active = Scoped.active
    assert active is not None, "a core was called from outside"
    return active.clock.monotonic()


class _Random:
    """Replaces the module `random`."""

    @staticmethod
    def random() -> float:
        active = Scoped.active
        assert active is not None, "a core was called from outside"
        return active.randomness.uniform(0.0, 1.0)


class PickleForbiddenError(BaseException):
    """pysyncobj was about to pickle, on a path out of reach. Ends the process."""


class _NoPickle:
    """Replaces pysyncobj's pickle module."""

    @staticmethod
    def _refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise PickleForbiddenError("pickle is forbidden in the quorum")

    loads = dumps = load = dump = to_bytes = _refuse


class _NoPoller:
    """Replaces its socket poller, since raftlog has its own transport."""

    def subscribe(self, *_arguments: Any) -> None:
        """Do nothing."""

    unsubscribe = poll = subscribe


class _Outlet:
    """Replaces its transport. Messages of SyncObj go to `send`, by peer."""

    ready = True

    def __init__(self, send: Callable[[int, dict[str, Any]], None]) -> None:
        self._send = send

    def _ignore(self, *_arguments: Any) -> None:
        """Do nothing, since the kernel calls SyncObj's handlers itself."""

    setOnNodeConnectedCallback = setOnNodeDisconnectedCallback = _ignore  # noqa: N815
    setOnReadonlyNodeConnectedCallback = setOnReadonlyNodeDisconnectedCallback = _ignore  # noqa: N815
    setOnMessageReceivedCallback = setOnUtilityMessageCallback = _ignore  # noqa: N815

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Send SyncObj's votes and responses to appends. The core sends all other messages."""
        self._send(node.id, message)
        return True


def _load() -> ModuleType:
    version = importlib.metadata.version("pysyncobj")
    if version != PYSYNCOBJ_VERSION:
        raise ImportError(
            f"raftlog needs pysyncobj {PYSYNCOBJ_VERSION} exactly, not {version}: it replaces "
            "unsafe parts of that version. Install raftlog into an environment of its own."
        )
    original = importlib.util.find_spec("pysyncobj.syncobj")
    assert original is not None and original.origin is not None
    spec = importlib.util.spec_from_file_location(_COPY, original.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_COPY] = module
    spec.loader.exec_module(module)
    names: dict[str, Any] = {
        "monotonicTime": _monotonic,
        "random": _Random,
        "pickle": _NoPickle,
        "createPoller": lambda _kind: _NoPoller(),
        "createJournal": lambda journal: journal,
        "PIPE_NOTIFIER_ENABLED": False,
    }
    missing = [name for name in names if not hasattr(module, name)]
    missing += [name for name in METHODS_RELIED_ON if not hasattr(module.SyncObj, name)]
    if missing:
        raise ImportError(f"pysyncobj {version} lacks {', '.join(missing)}")
    for name, value in names.items():
        setattr(module, name, value)
    # Its critical log line (entries replaced after a change of leader) is covered by assertions in
    # `RaftLog`, which stay on.
    logging.getLogger(_COPY).disabled = True
    return module


_MODULE = _load()
SyncObj: Any = _MODULE.SyncObj
"""Typed as Any, since the library has no types and mypy would believe its guesses."""


def _configuration(timing: Timing, log: RaftLog) -> Any:
    """SyncObj's configuration without thread, fork, dump and socket."""
    return _MODULE.SyncObjConf(
        autoTick=False,
        raftMinTimeout=timing.election_min_s,
        raftMaxTimeout=timing.election_max_s,
        appendEntriesPeriod=timing.heartbeat_s,
        leaderFallbackTimeout=timing.fallback_s,
        connectionTimeout=max(3.5, timing.election_max_s),
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        journalFile=log,
        useFork=False,
        fullDumpFile=None,
    )


class PySyncObjKernel(ABC):
    """One member's SyncObj, behind typed state, messages and hooks.

    The subclass enters `_scope` around each call that reaches SyncObj's code. SyncObj calls the
    hooks, which are abstract here, from within `tick` and the `_deliver_*` methods.
    """

    def __init__(
        self,
        me: int,
        log: RaftLog,
        applied_index: int,
        *,
        clock: Clock,
        randomness: Randomness,
        timing: Timing,
    ) -> None:
        self.me = me
        self.log = log
        self._clock = clock
        self._randomness = randomness
        self._timing = timing
        self._scope = Scoped(clock, randomness)
        with self._scope:
            so: Any = SyncObj(
                Node(me),
                [],
                _configuration(timing, log),
                nodeClass=Node,
                transport=_Outlet(self._send_as_typed),
            )
        missing = [name for name in ATTRIBUTES_RELIED_ON if not hasattr(so, name)]
        assert not missing, f"pysyncobj lacks {missing}"
        so._SyncObj__applyLogEntries = self._apply_entries
        so._SyncObj__connectedToAnyone = self._may_campaign
        so._SyncObj__generateRaftTimeout = self._election_timeout_s
        so._SyncObj__getEntries = self._entries
        so._SyncObj__sendAppendEntries = self._send_appends
        so._SyncObj__tryLogCompaction = _nothing
        so._checkCommandsToApply = _nothing
        so._SyncObj__needLoadDumpFile = False
        so._SyncObj__raftLastApplied = applied_index
        so._SyncObj__raftCommitIndex = applied_index
        self._so = so
        self._nodes: dict[int, Node] = {}
        """Nodes of voters and connected peers. SyncObj's tables have an entry for each of these."""
        # SyncObj changes these tables and never replaces them.
        self._next_indexes: dict[Node, int] = so._SyncObj__raftNextIndex
        self._match_indexes: dict[Node, int] = so._SyncObj__raftMatchIndex
        self._response_times: dict[Node, float] = so._SyncObj__lastResponseTime
        log.setRaftCommitIndex(applied_index)

    # State

    @property
    def term(self) -> int:
        """The newest term this member knows."""
        return int(self._so._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """The newest entry known to be committed."""
        return int(self._so._SyncObj__raftCommitIndex)

    def _set_commit_index(self, index: int) -> None:
        self._so._SyncObj__raftCommitIndex = index
        self.log.setRaftCommitIndex(index)

    @property
    def applied_index(self) -> int:
        """The newest entry applied."""
        return int(self._so._SyncObj__raftLastApplied)

    def _set_applied_index(self, index: int) -> None:
        self._so._SyncObj__raftLastApplied = index

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its term, to its own knowledge."""
        return bool(self._so._isLeader())

    @property
    def leader_id(self) -> int | None:
        """The leader of this member's term, or None while unknown."""
        leader = self._so._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    @property
    def election_deadline(self) -> float:
        """Monotonic time of this member's next campaign, unless it hears from a leader."""
        return float(self._so._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, at: float) -> None:
        self._so._SyncObj__raftElectionDeadline = at

    @property
    def _is_transfer_target(self) -> bool:
        """Whether the leader transfers its leadership to this member, without a pre-vote."""
        return bool(self._so._SyncObj__transferInProgress)

    @property
    def _other_voters(self) -> set[int]:
        return {node.id for node in self._so._SyncObj__otherNodes}

    # Progress of peers, by node id. None for a node that is neither a voter nor connected.

    def _next_index(self, peer: int) -> int | None:
        return self._next_indexes.get(self._nodes.get(peer))

    def _match_index(self, peer: int) -> int | None:
        return self._match_indexes.get(self._nodes.get(peer))

    def _response_time(self, peer: int) -> float | None:
        return self._response_times.get(self._nodes.get(peer))

    def _set_next_index(self, peer: int, index: int) -> None:
        self._next_indexes[self._nodes[peer]] = index

    def _set_response_time(self, peer: int, at: float) -> None:
        self._response_times[self._nodes[peer]] = at

    def _set_peers(self, voters: frozenset[int], connected: set[int]) -> None:
        """Set the voters and the connected peers. Peers known before keep their progress."""
        so = self._so
        nodes = {peer: self._nodes.get(peer) or Node(peer) for peer in voters | connected}
        self._nodes = nodes
        other_voters = {nodes[peer] for peer in voters if peer != self.me}
        connected_nodes = {nodes[peer] for peer in connected}
        so._SyncObj__otherNodes = other_voters
        so._SyncObj__readonlyNodes = connected_nodes - other_voters
        so._SyncObj__connectedNodes = connected_nodes
        followed = other_voters | connected_nodes
        table: dict[Node, Any]
        for table in (self._next_indexes, self._match_indexes, self._response_times):
            for node in [node for node in table if node not in followed]:
                del table[node]
        now = self._clock.monotonic()
        for node in followed:
            self._next_indexes.setdefault(node, self.log.last_index + 1)
            self._match_indexes.setdefault(node, 0)
            self._response_times.setdefault(node, now)

    # Input

    def tick(self) -> None:
        """Run elections, commitment, applying and heartbeats that are due."""
        with self._scope:
            self._so.doTick(0)

    def _deliver_request_vote(self, peer: int, message: RequestVote) -> None:
        self._deliver(
            peer,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_index,
                "last_log_term": message.last_term,
            },
        )

    def _deliver_vote(self, peer: int, term: int) -> None:
        self._deliver(peer, {"type": "response_vote", "term": term})

    def _deliver_append(self, peer: int, message: Append, commit_index: int) -> None:
        first = message.previous_index + 1
        self._deliver(
            peer,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": commit_index,
                "prevLogIdx": message.previous_index,
                "prevLogTerm": message.previous_term,
                "entries": [
                    (command, first + position, term)
                    for position, (term, command) in enumerate(message.entries)
                ],
            },
        )

    def _deliver_heartbeat(self, peer: int, term: int, commit_index: int = 0) -> None:
        """Handle a leader's heartbeat without entries to compare. `commit_index` commits none."""
        message = {"type": "append_entries", "term": term, "commit_index": commit_index}
        self._deliver(peer, message)

    def _deliver_append_answer(self, peer: int, message: AppendAnswer, *, reset: bool) -> None:
        self._deliver(
            peer,
            {
                "type": "next_node_idx",
                "next_node_idx": message.next_index,
                "reset": reset,
                "success": message.success,
            },
        )

    def _deliver_timeout_now(self, peer: int, term: int) -> None:
        self._deliver(peer, {"type": "timeout_now", "term": term})

    def _deliver(self, peer: int, message: dict[str, Any]) -> None:
        self._so._SyncObj__onMessageReceived(self._nodes.get(peer) or Node(peer), message)

    def _enter_term(self, term: int, vote: int | None) -> None:
        self._so._SyncObj__setCurrentTerm(term, vote)

    def _follow_in(self, term: int) -> None:
        """Enter a later term as a follower without a leader and without a vote."""
        so = self._so
        self._enter_term(term, None)
        so._SyncObj__setState(_FOLLOWER)
        so._SyncObj__raftLeader = None
        so._SyncObj__transferInProgress = False

    def _forget_leader(self) -> None:
        self._so._SyncObj__raftLeader = None

    def _set_heartbeat_at(self, at: float) -> None:
        """Set when SyncObj calls `_send_appends` next on the leader, if there is no news before."""
        self._so._SyncObj__newAppendEntriesTime = at

    # Output

    def _send_as_typed(self, peer: int, message: dict[str, Any]) -> None:
        match message["type"]:
            case "request_vote":
                index, term = message["last_log_index"], message["last_log_term"]
                self._send_request_vote(peer, RequestVote(message["term"], index, term))
            case "response_vote":
                self._send_vote(peer, message["term"])
            case "next_node_idx":
                success, reset = message["success"], message["reset"]
                self._send_append_answer(
                    peer, message["next_node_idx"], success=success, reset=reset
                )
            case kind:
                raise AssertionError(f"pysyncobj sends {kind}")

    @abstractmethod
    def _send_request_vote(self, peer: int, message: RequestVote) -> None: ...

    @abstractmethod
    def _send_vote(self, peer: int, term: int) -> None: ...

    @abstractmethod
    def _send_append_answer(
        self, peer: int, next_index: int, *, success: bool, reset: bool
    ) -> None: ...

    # Hooks, in place of SyncObj's methods

    @abstractmethod
    def _may_campaign(self) -> bool:
        """Whether to start an election. Called once `election_deadline` has passed."""

    @abstractmethod
    def _election_timeout_s(self) -> float:
        """Time from now to the next `election_deadline`."""

    @abstractmethod
    def _entries(
        self, start: int, count: int | None = None, _bytes_max: int | None = None
    ) -> list[LogEntry]:
        """Entries from `start` on, for comparing and for counting copies."""

    @abstractmethod
    def _send_appends(self) -> None:
        """Append to all peers of this leader, or send heartbeats."""

    @abstractmethod
    def _apply_entries(self) -> bool:
        """Apply committed entries. Return whether peers must be informed at once."""


def _nothing(*_arguments: Any) -> None:
    """Replaces a method of SyncObj with a counterpart elsewhere in raftlog."""
