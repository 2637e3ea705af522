"""Every package and page keeps to the rules, or to its ceiling in `tests/ceilings.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ratchet, tidy
from tests.ratchet import Figure


def test_no_count_is_above_its_ceiling_and_no_ceiling_far_above_its_count() -> None:
    assert ratchet.faults(tidy.figures(), ratchet.read()) == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for tree in (*tidy.TREES, *(f"client/{package}" for package in tidy.PUBLIC)):
        (tmp_path / tree).mkdir(parents=True, exist_ok=True)
    return tmp_path


def faults(root: Path, modules: dict[str, str]) -> list[str]:
    for name, code in modules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(code)
    found = [fault for tree in tidy.TREES for fault in tidy.code_faults(root / tree, root)]
    return sorted(f"{fault.rule} {fault.message}" for fault in found)


def test_a_function_has_at_most_70_lines(root: Path) -> None:
    short = "def short():\n" + "    f()\n" * 69
    long = "async def long():\n" + "    f()\n" * 70
    assert faults(root, {"tests/a.py": short + long}) == ["long-function long: 71 lines"]


def test_a_struct_takes_at_most_four_arguments_by_position(root: Path) -> None:
    structs = (
        "class Row(msgspec.Struct): ...\nclass Wide(Row): ...\n"
        "@dataclass(frozen=True)\nclass Data:\n"
        "    def of(cls):\n        return cls(1, 2, 3, 4, 5)\n"
        "class Plain: ...\n"
    )
    calls = "Row(1, 2, 3, 4)\na.Wide(1, 2, 3, 4, 5)\nData(1, 2, 3, 4, e=5)\nPlain(1, 2, 3, 4, 5)\n"
    assert faults(root, {"tests/a.py": structs, "bench/b.py": calls}) == [
        "positional Data takes 5 by position",
        "positional Wide takes 5 by position",
    ]


def test_an_attribute_is_set_only_on_self_or_in_the_module_of_its_class(root: Path) -> None:
    product = (
        "class Row:\n    count: int = 0\n"
        "class Log:\n    def __init__(self, row, log):\n        self.end = 0\n"
        "        row.count += 1\n        log.end = 2\n        log.start, log.parts[0] = 1, 2\n"
        "        self.log.on_full = self.f\n        log.error.__cause__ = None\n"
        "        self.log.size += 1\n"
    )
    found = faults(root, {"raftlog/a.py": product, "tests/b.py": "a.b.c = 1"})
    assert [fault for fault in found if fault.startswith("outside")] == [
        "outside log.start is set from outside",
        "outside self.log.on_full is set from outside",
        "outside self.log.size is set from outside",
    ]


def test_product_code_has_a_reference(root: Path) -> None:
    product = (
        "LIMIT = 1\nUSED = 2\n"
        "def recursive():\n    return recursive()\n"
        "@group.command\ndef command():\n    return USED\n"
        "class Loop(asyncio.Protocol):\n    def data_received(self): ...\n"
        "class Own(Loop):\n    def eof(self): ...\n"
        "class Plain(ABC):\n    def method(self): ...\n    @property\n    def value(self): ...\n"
    )
    users = "from a import Loop, Own, Plain\ngetattr(plain, 'value')\n"
    assert faults(
        root, {"raftlog/a.py": product, "scripts/b.py": users, "tests/c.py": "LIMIT"}
    ) == [
        "unreferenced LIMIT",
        "unreferenced method",
        "unreferenced recursive",
    ]


def test_what_a_package_exports_to_users_needs_no_reference(root: Path) -> None:
    package = "from raftlog_client.a import Client, helper\n__all__ = ['Client']\n"
    module = "class Client:\n    def send(self): ...\n    def _dead(self): ...\ndef helper(): ...\n"
    modules = {"client/raftlog_client/__init__.py": package, "client/raftlog_client/a.py": module}
    assert faults(root, modules) == ["unreferenced _dead", "unreferenced helper"]


def test_the_total_counts_documents_and_neither_the_changelog_nor_generated_pages() -> None:
    def counts(name: str) -> bool:
        return tidy.is_document(tidy.ROOT / name, tidy.ROOT)

    documents = ("README.md", "docs/kafka.md", "docs/decisions/raft.md", "raftlog/raft/DESIGN.md")
    others = ("CHANGELOG.md", "docs/reference/rest.md", "tests/simulation/data/FAULTS.md")
    assert all(map(counts, documents))
    assert not any(map(counts, others))


def test_a_count_may_neither_rise_nor_fall_far_below_its_ceiling() -> None:
    def found(count: int, ceiling: int | None, allowed: int = 0) -> list[str]:
        ceilings = {} if ceiling is None else {("colon", "a"): ceiling}
        return ratchet.faults([Figure("colon", "a", count, allowed)], ceilings)

    assert found(100, 100) == found(100, 115) == found(0, 10) == found(3, None, allowed=3) == []
    assert found(103, 100) == []
    assert found(104, 100) == ["colon a: 104, at most 103"]
    assert found(4, None, allowed=3) == ["colon a: 4, at most 3"]
    assert "ceiling 116" in found(100, 116)[0]
    assert "--lower" in found(0, 11)[0]


def test_rules_of_code_have_no_tolerance_and_pages_one_in_words() -> None:
    ceilings = {("positional", "a"): 5, ("words", "a"): 1000}
    assert ratchet.faults([Figure("positional", "a", 6)], ceilings)
    assert ratchet.faults([Figure("words", "a", 1020, 700)], ceilings) == []
    assert ratchet.faults([Figure("words", "a", 1021, 700)], ceilings)


def test_ceilings_are_lowered_and_never_raised(tmp_path: Path) -> None:
    path = tmp_path / "ceilings.txt"
    path.write_text("# RULE PLACE COUNT\nsemicolon a 9\nsemicolon a 7\nsemicolon b 5\none c 3\n")
    ceilings = ratchet.read(path)
    assert ceilings["semicolon", "a"] == 7
    figures = [Figure("semicolon", "a", 8), Figure("semicolon", "b", 2), Figure("one", "c", 1, 1)]
    ratchet.write(figures, ceilings, path)
    assert ratchet.read(path) == {("semicolon", "a"): 7, ("semicolon", "b"): 2}
