"""pysyncobj as raftlog uses it: our own copy of its module, without its clock, dice and pickles.

raftlog's core overrides private methods of pysyncobj's SyncObj. That is safe with exactly one
version, so it is pinned, and what is relied on is looked for at import.

The module `pysyncobj.syncobj` is loaded a second time under a name of our own, and only that copy
is changed: whoever else uses pysyncobj in the process has the original. Its functions take clock
and randomness from the globals of their module; here these come from whichever core has been
entered (`Scoped`). One event loop runs all cores of a process, and no call into a core
awaits, so at most one is entered at a time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from pysyncobj.node import Node

from raftlog.raft.core_host import Timing
from raftlog.world import Clock, Randomness

__all__ = ["PYSYNCOBJ_VERSION", "Node", "Scoped", "SyncObj", "configuration"]

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
"""Looked for in every new core; the methods, once, at import."""


class Scoped(AbstractContextManager[None]):
    """Gives one core's clock and randomness to the module, for the time of a `with`."""

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
    """In place of the module `random`."""

    @staticmethod
    def random() -> float:
        active = Scoped.active
        assert active is not None, "a core was called from outside"
        return active.randomness.uniform(0.0, 1.0)


class PickleForbiddenError(BaseException):
    """pysyncobj was about to pickle: no path that does may be reached. Ends the process."""


class _NoPickle:
    """In place of pysyncobj's pickle module."""

    @staticmethod
    def _refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise PickleForbiddenError("pickle is forbidden in the quorum")

    loads = dumps = load = dump = to_bytes = _refuse


class _NoPoller:
    """In place of its socket poller: the transport is ours."""

    def subscribe(self, *_arguments: Any) -> None:
        """Nothing."""

    unsubscribe = poll = subscribe


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
    # What it would log as critical (entries replaced after a change of leader) is checked in
    # `RaftLog`, by assertions that stay on.
    logging.getLogger(_COPY).disabled = True
    return module


_MODULE = _load()
SyncObj: Any = _MODULE.SyncObj
"""Typed as Any: the library has no types, and mypy would believe what it guesses."""


def configuration(timing: Timing, journal: object) -> Any:
    """What a SyncObj of ours is told: nothing of it happens by itself, or is forked or dumped."""
    return _MODULE.SyncObjConf(
        autoTick=False,
        raftMinTimeout=timing.election_min_s,
        raftMaxTimeout=timing.election_max_s,
        appendEntriesPeriod=timing.heartbeat_s,
        leaderFallbackTimeout=timing.fallback_s,
        connectionTimeout=max(3.5, timing.election_max_s),
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        journalFile=journal,
        useFork=False,
        fullDumpFile=None,
    )
