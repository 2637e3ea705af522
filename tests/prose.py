"""Reads the prose of the tree from Python and Markdown.

Python's prose is its docstrings, comments, log lines and help texts.

A `Passage` is one paragraph, list item, heading or table cell. Code is left out: literal blocks and
fenced blocks are dropped, and a word in backticks becomes the word `CODE`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal

Kind = Literal["docstring", "comment", "log", "help", "document"]

LOG_CALLS: Final = frozenset(["debug", "info", "warning", "error", "critical", "exception"])
TEXT_ARGUMENTS: Final = frozenset({"help", "short_help", "epilog", "description"})
CODE: Final = "CODE"
"""Word that stands for a piece of code."""

_CODE_SPAN: Final = re.compile(r"``[^`]+``|`[^`\n]*(?:\n[^`\n]+)?`")
_QUOTED: Final = re.compile(r"(?<!\w)([\"']|“)[^\w\"']{1,3}(?:\1|”)")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_ADDRESS: Final = re.compile(r"<?\bhttps?://[^\s>)]+>?")
_ENTITY: Final = re.compile(r"&#?\w+;")
_ITEM: Final = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+")
_LABELLED: Final = re.compile(r"\s*(?:CODE|\w+):\s+\S")
_DIRECTIVE: Final = re.compile(r"^#\s*(noqa|type:|pragma|!)")
_FENCE: Final = re.compile(r"\s*(?:```|~~~)")
_HEADING: Final = re.compile(r"\s*#{1,6}\s+")
_RULE: Final = re.compile(r"\s*(?:\|?\s*:?-{3,}:?\s*)+\|?\s*$")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose of a Python file."""

    path: Path
    line: int
    words: str
    kind: Kind

    @property
    def is_comment(self) -> bool:
        """Whether it is for readers of the code."""
        return self.kind in {"docstring", "comment"}


@dataclass(frozen=True, slots=True)
class Passage:
    """One paragraph, list item, heading or table cell, with code replaced by `CODE`."""

    path: Path
    line: int
    text: str
    kind: Kind
    is_item: bool = False
    """Whether a label and a colon may start the passage."""
    opens_docstring: bool = False

    def place(self, offset: int = 0) -> str:
        """File and line of a character of the text."""
        return f"{self.path}:{self.line + self.text.count(chr(10), 0, offset)}"


def python_files(path: Path) -> Iterator[Path]:
    """Every Python file at or below `path`, sorted."""
    yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


@lru_cache(maxsize=1)
def tree_of(path: Path) -> ast.Module:
    """The syntax of a module. Only the last module's is kept, since all of them are large."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def texts_of(path: Path) -> tuple[Text, ...]:
    """The docstrings, comments, log lines and help texts of one file, read once."""
    return tuple(Text(path, line, words, kind) for line, words, kind in _python_texts(path))


@cache
def passages_of(path: Path) -> tuple[Passage, ...]:
    """Every passage of a Python or Markdown file, read once."""
    if path.suffix == ".md":
        return tuple(_markdown_passages(path))
    return tuple(_python_passages(path))


def _python_texts(path: Path) -> Iterator[tuple[int, str, Kind]]:
    for line, _, words in _comments(path):
        yield line, words.lstrip("#: "), "comment"
    for node in ast.walk(tree_of(path)):
        # A string that stands alone is a docstring, of an attribute too.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value, "docstring"
        elif isinstance(node, ast.Call):
            yield from _call_texts(node)


@cache
def _comments(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Line, column and text of each comment. Directives for tools are left out."""
    source = io.StringIO(path.read_text(encoding="utf-8"))
    return tuple(
        (*token.start, token.string)
        for token in tokenize.generate_tokens(source.readline)
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string)
    )


def _call_texts(call: ast.Call) -> Iterator[tuple[int, str, Kind]]:
    if isinstance(call.func, ast.Attribute) and call.func.attr in LOG_CALLS:
        for argument in call.args[:1]:
            yield from _strings(argument, "log")
    for keyword in call.keywords:
        if keyword.arg in TEXT_ARGUMENTS:
            yield from _strings(keyword.value, "help")


def _strings(node: ast.expr, kind: Kind) -> Iterator[tuple[int, str, Kind]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.lineno, part.value, kind


def _python_passages(path: Path) -> Iterator[Passage]:
    for text in texts_of(path):
        if text.kind != "comment":
            passages = _paragraphs(path, text.line, text.words.split("\n"), text.kind)
            for number, passage in enumerate(passages):
                yield replace(passage, opens_docstring=number == 0 and text.kind == "docstring")
    for line, lines in _comment_blocks(path):
        yield from _paragraphs(path, line, lines, "comment")


def _comment_blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Comments on consecutive lines and in the same column, as one block."""
    first, column, lines = 0, 0, list[str]()
    for line, start, text in _comments(path):
        words = text.lstrip("#:")
        if lines and line == first + len(lines) and start == column:
            lines.append(words)
        else:
            if lines:
                yield first, lines
            first, column, lines = line, start, [words]
    if lines:
        yield first, lines


def _paragraphs(path: Path, line: int, lines: Iterable[str], kind: Kind) -> Iterator[Passage]:
    """Cut lines into paragraphs and list items. A block after `::` and a doctest are left out."""
    held: list[str] = []
    first, is_item = line, False
    literal_below: int | None = None
    for number, raw in enumerate(_plain("\n".join(lines)).split("\n"), line):
        indent = len(raw) - len(raw.lstrip())
        if literal_below is not None:
            if not raw.strip() or indent > literal_below:
                continue
            literal_below = None
        item = _ITEM.match(raw)
        starts = item is not None or (kind != "log" and _LABELLED.match(raw) is not None)
        if held and (starts or not raw.strip()):
            yield Passage(path, first, "\n".join(held), kind, is_item=is_item)
            held = []
        if raw.strip() and not raw.lstrip().startswith((">>>", "...", "\b")):
            if not held:
                first, is_item = number, starts
            held.append(raw[item.end() :] if item else raw.strip())
        if raw.rstrip().endswith("::"):
            # A docstring's first line starts behind its quotes, so its block is indented by any.
            literal_below = 0 if number == line else indent
            yield Passage(path, first, "\n".join(held), kind, is_item=is_item)
            held = []
    if held:
        yield Passage(path, first, "\n".join(held), kind, is_item=is_item)


def _plain(text: str) -> str:
    """The text with code, addresses and quoted marks as the word `CODE`, on the same lines."""
    for pattern in (_CODE_SPAN, _QUOTED, _ADDRESS, _ENTITY):
        text = pattern.sub(lambda found: CODE + "\n" * found[0].count("\n"), text)
    return text


def _markdown_passages(path: Path) -> Iterator[Passage]:
    source = path.read_text(encoding="utf-8")
    source = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source)
    source = _LINK.sub(lambda found: found[1], source)
    held: list[str] = []
    first, in_fence, after_blank, in_list = 1, False, True, False
    for number, raw in enumerate([*source.split("\n"), ""], 1):
        line = raw.lstrip("> ") if raw.startswith(">") else raw
        is_fence = _FENCE.match(line) is not None
        # Four spaces after a blank line are code, unless they continue a list item.
        is_code = in_fence or (after_blank and line.startswith("    ") and not in_list)
        is_cell = line.lstrip().startswith("|")
        is_heading = _HEADING.match(line) is not None
        ends = is_fence or is_code or is_cell or is_heading or not line.strip()
        if held and (ends or _ITEM.match(line)):
            yield from _paragraphs(path, first, held, "document")
            held = []
        after_blank = not line.strip() or is_heading
        if is_fence:
            in_fence = not in_fence
        elif is_cell and not in_fence and not _RULE.match(line):
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                for passage in _paragraphs(path, number, [cell], "document"):
                    yield replace(passage, is_item=True)
        elif is_heading and not in_fence:
            yield from _paragraphs(path, number, [_HEADING.sub("", line)], "document")
        elif not ends:
            in_list = _ITEM.match(line) is not None or (in_list and line.startswith(" "))
            first = first if held else number
            held.append(line)
