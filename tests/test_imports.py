"""No modules import each other at run time, and few do so for types alone.

A circle of imports is a group of modules that reach each other by imports. Imports under
`TYPE_CHECKING` count apart: they tie modules together for the reader, not for the interpreter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
TREES: Final = {
    "raftlog": ROOT / "raftlog",
    "raftlog_client": ROOT / "client/raftlog_client",
    "raftlog_replicated": ROOT / "client/raftlog_replicated",
    "raftlog_spark": ROOT / "client/raftlog_spark",
}
TYPE_CIRCLES_MAX: Final = 2
"""Circles by imports for types, in all trees. The limit only falls."""


def modules(tree: str) -> dict[str, Path]:
    """The modules of a tree, by their dotted names."""
    found = {}
    for path in sorted(TREES[tree].rglob("*.py")):
        parts = path.relative_to(TREES[tree]).with_suffix("").parts
        found[".".join((tree, *(part for part in parts if part != "__init__")))] = path
    return found


def imported(module: ast.Module, *, for_types: bool) -> Iterator[tuple[str, str | None]]:
    """Each imported module, and the name imported from it."""
    guarded = {
        id(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(module):
        if id(node) in guarded and not for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((name.name, None) for name in node.names)


def graph(tree: str, *, for_types: bool) -> dict[str, set[str]]:
    """The modules that each module of a tree imports."""
    paths = modules(tree)
    edges = {}
    for name, path in paths.items():
        pairs = imported(ast.parse(path.read_text()), for_types=for_types)
        targets = {
            module if part is None or f"{module}.{part}" not in paths else f"{module}.{part}"
            for module, part in pairs
        }
        edges[name] = (targets & paths.keys()) - {name}
    return edges


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that a module reaches by one import or more."""
    found: set[str] = set()
    ahead = list(edges[start])
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead.extend(edges[module])
    return found


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other."""
    reached = {name: reachable(edges, name) for name in edges}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in edges
        if name in reached[name]
    }
    return sorted(sorted(group) for group in groups)


@pytest.mark.parametrize("tree", TREES)
def test_no_modules_import_each_other_at_run_time(tree: str) -> None:
    assert circles(graph(tree, for_types=False)) == []


def test_few_modules_import_each_other_for_types() -> None:
    found = [one for tree in TREES for one in circles(graph(tree, for_types=True))]
    assert len(found) <= TYPE_CIRCLES_MAX, found


def test_a_circle_of_imports_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(edges) == [["a", "b", "c"]]
