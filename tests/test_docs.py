"""The pages tell the truth: generated ones equal the code, and every reference has a target."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.language import ROOT
from tests.prose import texts_of

MARKDOWN_LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PAGE: Final = re.compile(r"(?<![\w/.*-])[\w./-]+\.md\b")
MODULE: Final = re.compile(r"(?<![\w/.*-])[a-z_][\w/]*\.py\b")
SYMBOL: Final = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?`")
"""A class, or a class and its member, as the architecture names them."""
NOT_OF_THE_REPOSITORY: Final = frozenset(
    {"tour.py", "copy_trips.py", "node.py", "app.py", "program.py", "job.py", "main.py", "setup.py"}
)
"""Names that a page or a help text gives to a file of its reader."""


def tracked(*endings: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(endings)]
    return [path for path in found if path.exists()]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "scripts" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_equal_the_code(generator: ModuleType) -> None:
    assert generator.outdated() == [], "run scripts/docs"


def test_a_page_that_differs_is_outdated(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "PAGES", tmp_path)
    (tmp_path / "errors.md").write_text(generator.page("errors.md"))
    (tmp_path / "rest.md").write_text(generator.page("rest.md") + "one more line\n")
    assert "errors.md" not in generator.outdated()
    assert "rest.md" in generator.outdated()


def test_every_link_of_a_page_has_a_target() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in tracked(".md")
        for target in MARKDOWN_LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_page_that_is_named_exists() -> None:
    pages = {str(path.relative_to(ROOT)) for path in tracked(".md")}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked(".md", ".py", ".toml")
        for name in _names(path, PAGE)
        if not _ends_one_of(name.lstrip("./"), pages)
    ]
    assert missing == []


def test_every_module_that_is_named_exists() -> None:
    modules = {str(path.relative_to(ROOT)) for path in tracked(".py")}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked(".md", ".py")
        for name in _names(path, MODULE)
        if name not in NOT_OF_THE_REPOSITORY and not _ends_one_of(name, modules)
    ]
    assert missing == []


def test_every_class_that_the_architecture_names_exists() -> None:
    members = _members_by_class()
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    missing = [
        f"{name}.{member}" if member else name
        for name, member in SYMBOL.findall(page)
        if member not in members.get(name, {})
    ]
    assert missing == []


def _members_by_class() -> dict[str, set[str]]:
    """The members of each class of the product; "" is a member of each."""
    found: dict[str, set[str]] = {}
    for path in tracked(".py"):
        if path.relative_to(ROOT).parts[0] not in ("raftlog", "client"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, {""}).update(_members(node))
    return found


def _members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            yield item.name
        elif isinstance(item, ast.Assign):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id


def _names(path: Path, pattern: re.Pattern[str]) -> set[str]:
    if path.suffix == ".py":
        texts = [text.words for text in texts_of(path) if text.is_comment]
    else:
        texts = [path.read_text(encoding="utf-8")]
    return {name for text in texts for name in pattern.findall(text)}


def _ends_one_of(name: str, paths: set[str]) -> bool:
    return any(path == name or path.endswith("/" + name) for path in paths)
