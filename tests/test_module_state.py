"""No module keeps mutable state: two nodes in one process share nothing but code and tables.

The rule, checked on the syntax of every module of the product:

- no `global` statement;
- a list, dict, set or array bound to a module's name is a table: its name is in capitals, and no
  code in the tree changes it after its module's top level has run;
- an instance of one of the product's own classes is immutable (a frozen dataclass or Struct, an
  Enum, a NamedTuple), or a command of the command line.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
TREES: Final = (
    "raftlog",
    "client/raftlog_client",
    "client/raftlog_spark",
    "client/pyspark_raftlog",
)
CONTAINERS: Final = frozenset(
    [
        "list",
        "dict",
        "set",
        "bytearray",
        "deque",
        "defaultdict",
        "Counter",
        "OrderedDict",
        "ChainMap",
        "array",
        "SimpleNamespace",
        "WeakSet",
        "WeakKeyDictionary",
        "WeakValueDictionary",
    ]
)
STATEFUL: Final = frozenset(
    [
        "count",
        "cycle",
        "Event",
        "Lock",
        "RLock",
        "Condition",
        "Semaphore",
        "Queue",
        "local",
        "ContextVar",
        "Random",
        "ThreadPoolExecutor",
    ]
)
"""External classes whose instances change."""
DISPLAYS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTATORS: Final = frozenset(
    [
        "append",
        "appendleft",
        "add",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    ]
)
IMMUTABLE_BASES: Final = frozenset(
    ["NamedTuple", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "str", "int", "tuple"]
)
COMMAND_BASES: Final = frozenset(["Command", "Group"])
"""click's: built at import, read-only from then on."""
ALLOWED: Final = frozenset(
    [
        ("client/raftlog_spark/cluster.py", "_others"),
        ("raftlog/record/decoders.py", "_decoders"),
        ("raftlog/record/decoders.py", "_making"),
    ]
)
"""The parent's connections in a forked process: to collect them would close the parent's sockets,
so they live as long as the process, whatever instance used them. The decoders of types, which are
as immutable as the types."""


@dataclass(frozen=True)
class Binding:
    """A name bound at a module's top level."""

    name: str
    value: ast.expr


@cache
def modules() -> dict[Path, ast.Module]:
    paths = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
    return {path: ast.parse(path.read_text()) for path in paths}


@cache
def immutable_classes() -> tuple[frozenset[str], frozenset[str]]:
    """Names of the product's classes: all of them, and the immutable ones."""
    classes: dict[str, ast.ClassDef] = {}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node

    def is_immutable(name: str) -> bool:
        node = classes.get(name)
        if node is None:
            return name in IMMUTABLE_BASES | COMMAND_BASES
        settings = [*node.keywords]
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                settings += decorator.keywords
        is_frozen = any(
            one.arg == "frozen" and isinstance(one.value, ast.Constant) and one.value.value
            for one in settings
        )
        return is_frozen or any(is_immutable(last_name(base)) for base in node.bases)

    return frozenset(classes), frozenset(name for name in classes if is_immutable(name))


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def bindings(tree: ast.Module) -> Iterator[Binding]:
    """Names bound at the top level, also below `if` and `try`."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield Binding(last_name(target), node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield Binding(last_name(node.target), node.value)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            pending += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]


def tables(tree: ast.Module) -> set[str]:
    """Names of the module's containers."""
    return {
        one.name
        for one in bindings(tree)
        if isinstance(one.value, DISPLAYS)
        or (isinstance(one.value, ast.Call) and last_name(one.value.func) in CONTAINERS)
    }


def outermost_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
        else:
            yield from outermost_functions(child)


def changed_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of containers that functions change, with the line."""
    for function in outermost_functions(tree):
        own = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node in ast.walk(function):
            changed: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                changed = [one.value for one in node.targets if isinstance(one, ast.Subscript)]
            elif isinstance(node, ast.AugAssign):
                target = node.target
                changed = [target.value if isinstance(target, ast.Subscript) else target]
            elif isinstance(node, ast.Delete):
                changed = [one.value for one in node.targets if isinstance(one, ast.Subscript)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changed = [node.func.value] if node.func.attr in MUTATORS else []
            for one in changed:
                name = last_name(one)
                is_own = isinstance(one, ast.Name) and name in own
                is_field = isinstance(one, ast.Attribute) and last_name(one.value) in {
                    "self",
                    "cls",
                }
                if name and not is_own and not is_field:
                    yield name, getattr(node, "lineno", 0)


def violations(tree: ast.Module, allowed: Collection[str] = ()) -> Iterator[str]:
    classes, immutable = immutable_classes()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"
    names = tables(tree) - set(allowed)
    for name in sorted(names):
        if name != "__all__" and name.upper() != name:
            yield f"{name} is a container, and not named as a table"
    for name, line in changed_names(tree):
        if name in names:
            yield f"line {line}: the table {name} is changed"
    for one in bindings(tree):
        if isinstance(one.value, ast.Call) and one.name not in allowed:
            called = last_name(one.value.func)
            if called in STATEFUL or (called in classes and called not in immutable):
                yield f"{one.name} is an instance of {called}, which can change"


@pytest.mark.parametrize("tree", TREES)
def test_no_module_keeps_mutable_state(tree: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {violation}"
        for path, module in modules().items()
        if path.is_relative_to(ROOT / tree)
        for violation in violations(module, [name for file, name in ALLOWED if ROOT / file == path])
    ]
    assert not found, "\n".join(found)


def test_no_module_changes_the_table_of_another() -> None:
    every = {name for module in modules().values() for name in tables(module)}
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path, module in modules().items()
        for name, line in changed_names(module)
        if name in every and name.upper() == name
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "seen = []",
        "SEEN = []\ndef f():\n    SEEN.append(1)",
        "SEEN: Final = {}\ndef f():\n    SEEN[1] = 2",
        "SEEN = defaultdict(list)\ndef f():\n    del SEEN[1]",
        "_batcher = SmallRequestBatcher(None)",
        "_turns: Final = RoundRobin()",
        "_ids = itertools.count()",
        "_last = 0\ndef f():\n    global _last\n    _last += 1",
        "if True:\n    cache = {}",
    ],
)
def test_rule_finds_state(source: str) -> None:
    assert list(violations(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "TABLE: Final = {1: 2}",
        "_TABLE = [1]\ndef f():\n    _TABLE = []\n    _TABLE.append(1)",
        "ANONYMOUS = Principal('User', 'ANONYMOUS')",
        "TABLE = {}\nfor name in NAMES:\n    TABLE[name] = 1",
        "__all__ = ['f']",
    ],
)
def test_rule_allows_tables_and_values(source: str) -> None:
    assert not list(violations(ast.parse(source)))
