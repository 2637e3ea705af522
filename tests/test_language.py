"""The field's words in plain active English, held over the whole tree (TigerBeetle's tidy test)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.language import (
    PERSONS_MAX,
    PRONOUNS_MAX,
    ROOT,
    TREES,
    Count,
    Text,
    count,
    faults_of,
    python_files,
    texts_of,
)

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
        if file.name not in {"language.py", "test_language.py"}
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
    assert list(faults_of(Text(tmp_path, 1, "`nobody`", is_comment=True))) == []
