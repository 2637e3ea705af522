"""The private copy of pysyncobj: pinned, checked, without pickle."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pysyncobj import syncobj as original

import raftlog
from raftlog.raft import kernel
from raftlog.raft.kernel import (
    ATTRIBUTES_RELIED_ON,
    METHODS_RELIED_ON,
    PYSYNCOBJ_VERSION,
    PickleForbiddenError,
    Scoped,
    SyncObj,
)
from tests.simulation.clock import ManualClock
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.world import SeededRandomness

COPY = "pysyncobj.syncobj_of_raftlog"


@pytest.fixture(autouse=True)
def the_copy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading once more must not replace the copy in use everywhere else."""
    monkeypatch.setitem(sys.modules, COPY, sys.modules[COPY])


def load_without(
    monkeypatch: pytest.MonkeyPatch, *, of_class: str = "", of_module: str = ""
) -> None:
    """Load the copy as if pysyncobj lacked a name."""
    make = importlib.util.module_from_spec

    def lacking(spec: Any) -> ModuleType:
        module = make(spec)
        execute = spec.loader.exec_module

        def without(loaded: ModuleType) -> None:
            execute(loaded)
            if of_class:
                delattr(loaded.SyncObj, of_class)
            if of_module:
                delattr(loaded, of_module)

        monkeypatch.setattr(spec.loader, "exec_module", without)
        return module

    monkeypatch.setattr(importlib.util, "module_from_spec", lacking)
    kernel._load()


def test_only_the_pinned_version_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.metadata.version("pysyncobj") == PYSYNCOBJ_VERSION
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.3.18")
    with pytest.raises(ImportError, match=r"needs pysyncobj 0\.3\.17 exactly, not 0\.3\.18"):
        kernel._load()


@pytest.mark.parametrize("name", METHODS_RELIED_ON)
def test_a_missing_method_is_named_at_import(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ImportError, match=f"lacks {name}$"):
        load_without(monkeypatch, of_class=name)


@pytest.mark.parametrize(
    "name", ["monotonicTime", "random", "pickle", "createPoller", "createJournal"]
)
def test_a_missing_global_is_named_at_import(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ImportError, match=f"lacks {name}$"):
        load_without(monkeypatch, of_module=name)


@pytest.mark.parametrize("name", ATTRIBUTES_RELIED_ON)
def test_a_missing_attribute_is_named_by_every_new_core(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build = SyncObj.__init__

    def without(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        delattr(self, name)

    monkeypatch.setattr(SyncObj, "__init__", without)
    with pytest.raises(AssertionError, match=name):
        CoreCluster((1,))


def test_each_private_name_that_the_kernel_reaches_is_checked() -> None:
    """Each private name of pysyncobj in kernel.py is on one of the two lists."""
    code = Path(kernel.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r"\._SyncObj__(\w+)", code))
    assert used
    assert used <= {
        name.removeprefix("_SyncObj__") for name in (*METHODS_RELIED_ON, *ATTRIBUTES_RELIED_ON)
    }


def test_only_the_kernel_knows_pysyncobj() -> None:
    """No other module of the product imports pysyncobj or reaches its private names."""
    foreign = re.compile(r"_SyncObj__|^\s*(?:import|from)\s+pysyncobj\b", re.MULTILINE)
    top = Path(raftlog.__file__).parent
    knowing = [
        path.relative_to(top).as_posix()
        for path in sorted(top.rglob("*.py"))
        if foreign.search(path.read_text(encoding="utf-8"))
    ]
    assert knowing == ["raft/kernel.py"]


@pytest.mark.parametrize("name", ["loads", "dumps", "load", "dump", "to_bytes"])
def test_pickle_is_out_of_reach(name: str) -> None:
    copy = sys.modules[COPY]
    with pytest.raises(PickleForbiddenError, match="forbidden"):
        getattr(copy.pickle, name)(b"cos\nsystem\n(S'true'\ntR.")
    assert not issubclass(PickleForbiddenError, Exception), "no `except Exception` may hide it"


def test_a_method_that_pickles_ends_in_the_refusal() -> None:
    seat = CoreCluster((1,))[1]
    with pytest.raises(PickleForbiddenError):
        seat.core._so._SyncObj__doApplyCommand(b"\x00cos\nsystem\n(S'true'\ntR.")


def test_the_original_module_is_as_it_was() -> None:
    copy = sys.modules[COPY]
    assert original is not copy
    assert original.SyncObj is not SyncObj
    assert original.random is random
    assert original.pickle.__name__ == "pysyncobj.pickle"
    assert original.monotonicTime is not copy.monotonicTime
    assert original.createJournal.__module__ == "pysyncobj.journal"
    assert original.createPoller.__module__ == "pysyncobj.poller"
    assert not logging.getLogger("pysyncobj.syncobj").disabled


def test_clock_and_dice_are_of_the_core_that_is_entered() -> None:
    copy = sys.modules[COPY]
    clock = ManualClock()
    with Scoped(clock, SeededRandomness(random.Random(1))):
        assert copy.monotonicTime() == clock.monotonic()
        assert copy.random.random() == random.Random(1).uniform(0.0, 1.0)


def test_outside_of_a_core_there_is_no_time() -> None:
    copy = sys.modules[COPY]
    with pytest.raises(AssertionError, match="from outside"):
        copy.monotonicTime()
    with pytest.raises(AssertionError, match="from outside"):
        copy.random.random()


def test_only_one_core_is_entered_at_a_time() -> None:
    entered = Scoped(ManualClock(), SeededRandomness(random.Random(1)))
    with entered, pytest.raises(AssertionError, match="two cores"), entered:
        pass
    Scoped.active = None


def test_a_core_is_left_when_it_raises() -> None:
    entered = Scoped(ManualClock(), SeededRandomness(random.Random(1)))
    with pytest.raises(ZeroDivisionError), entered:
        raise ZeroDivisionError
    assert Scoped.active is None
