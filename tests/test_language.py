"""The field's words in plain active English, held over the whole tree (TigerBeetle's tidy test)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.language import (
    OF_THE_RULES,
    PERSONS_MAX,
    PRONOUNS_MAX,
    ROOT,
    TREES,
    Count,
    allowed,
    count,
    faults_of,
    shapes_of,
)
from tests.prose import Text, passages_of, python_files, texts_of

PACKAGES = sorted(
    path
    for tree in TREES
    for path in [ROOT / tree, *(ROOT / tree).iterdir()]
    if path.is_dir() and any(path.glob("*.py"))
)
"""Every directory of modules, one level below the top: a count per package, not one for all."""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_persons_and_vague_pronouns_are_rare(package: Path) -> None:
    counted = count([package])
    assert counted.persons_rate <= PERSONS_MAX
    assert counted.pronouns_rate <= PRONOUNS_MAX


def test_no_banned_word_is_left() -> None:
    found = [
        fault
        for tree in TREES
        for file in python_files(ROOT / tree)
        if file.name not in OF_THE_RULES
        for text in texts_of(file)
        for fault in faults_of(text)
    ]
    assert found == []


def source(tmp_path: Path, code: str) -> list[Text]:
    path = tmp_path / "module.py"
    path.write_text(code)
    return list(texts_of(path))


def test_docstrings_comments_log_lines_and_help_texts_are_read(tmp_path: Path) -> None:
    texts = source(
        tmp_path,
        '"""A module."""\nX = 1  # a comment\n"""Of an attribute."""\n'
        'def f():\n    logger.info("a line of %s", 1)\n    option(help="a help text")\n'
        '    plain("no prose")\n',
    )
    assert {text.words for text in texts if text.is_comment} == {
        "A module.",
        "a comment",
        "Of an attribute.",
    }
    assert {text.words for text in texts if not text.is_comment} == {"a line of %s", "a help text"}


def test_a_banned_word_is_named_with_its_line_and_its_replacement(tmp_path: Path) -> None:
    (text,) = source(tmp_path, '"""A first line.\n\nNobody listens.\n"""\n')
    (fault,) = faults_of(text)
    assert "module.py:3: 'Nobody': write no reader" in fault


def test_words_in_backticks_do_not_count(tmp_path: Path) -> None:
    (text,) = source(tmp_path, '"""The column `who` and the word told."""\n')
    counted = Count()
    counted.add(text)
    assert counted.persons == 1
    assert list(faults_of(Text(tmp_path, 1, "`nobody`", "comment"))) == []


def rules_of(tmp_path: Path, text: str, name: str = "page.md") -> list[str]:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}-{name}"
    path.write_text(text)
    return [fault.rule for passage in passages_of(path) for fault in shapes_of(passage)]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("The leader appends; the follower fetches.", ["semicolon"]),
        ("The log has two ends: a start and an end.", ["colon"]),
        ("The log has\ntwo ends:\na start and an end.", ["colon"]),
        ("The old segment and the new one.", ["one"]),
        ("Older ones are deleted.", ["one"]),
        ("The one that leads appends.", ["one"]),
        ("The leader tells the follower.", ["tell"]),
        ("Followers have it, too.", ["banned"]),
        ("The leader goes on.", ["banned"]),
        ("A machine of its own.", ["banned"]),
        ("Whoever leads, appends.", ["banned"]),
        ("| a; b | c: d |\n|---|---|\n", ["semicolon"]),
    ],
)
def test_a_shape_is_counted(tmp_path: Path, text: str, rules: list[str]) -> None:
    assert rules_of(tmp_path, text) == rules


@pytest.mark.parametrize(
    "text",
    [
        "Run this command:\n\n```\na; b: c; d\n```\n\n    four; spaces: of code\n",
        "Call `f(a; b: c)` at 12:30 on https://host:8082/a;b or http://10.0.0.1:80/.",
        "These exist:\n- **A label**: its text\n- `name`: its text\n3. Three words so: its text\n",
        "| `name`: its text | a label: its text |\n",
        "The separator is \";\" or &nbsp; or ': '.",
        "At least one, exactly one, one or more, one node, one of three, one at a time, by one.",
        "<!-- a comment; with: marks -->",
        "A rule of its kind, too late.",
    ],
)
def test_code_lists_and_numerals_are_no_shapes(tmp_path: Path, text: str) -> None:
    assert rules_of(tmp_path, text) == []


def test_docstrings_have_shapes_and_first_sentences(tmp_path: Path) -> None:
    code = (
        '"""A module: its code.\n\nIts code::\n\n    a; b\n\nMore; prose.\n"""\n'
        'X = 1\n"""Of requests."""\n'
        'def f():\n    """' + "word " * 16 + 'end.\n\n    Bytes: of it\n    """\n'
        '    # a comment that\n    # holds; two lines\n    logger.info("failed: %s; node: x", 1)\n'
    )
    assert sorted(rules_of(tmp_path, code, "module.py")) == [
        "colon",
        "colon",
        "long-first",
        "preposition",
        "semicolon",
        "semicolon",
        "semicolon",
    ]


def test_a_fault_names_the_line_of_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Title\n\nA first line\nand a second; here.\n")
    (fault,) = (fault for passage in passages_of(path) for fault in shapes_of(passage))
    assert fault.place == f"{path}:4"


def test_a_rate_allows_a_share_of_the_words() -> None:
    assert allowed("semicolon", 1000) == 2
    assert allowed("semicolon", 1) == 1
    assert allowed("banned", 1000) == 0
