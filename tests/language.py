"""Language rules: counts and banned words of docstrings, comments, log lines and help texts.

`python -m tests.language [PATH ...]` prints the counts per 1,000 words for each path, and every
banned word with its place and its replacement.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
TREES: Final = ("raftlog", "client", "bench", "scripts", "tests")

PERSONS: Final = frozenset(
    ["who", "whom", "whose", "whoever", "whomever", "nobody", "somebody", "told", "asked"]
)
PERSONS_MAX: Final = 1.0
"""Most words of PERSONS per 1,000 words of docstrings and comments."""
PRONOUNS: Final = frozenset(["what", "that", "it", "them", "they"])
PRONOUNS_MAX: Final = 35.0
"""Most words of PRONOUNS per 1,000."""

BANNED: Final[dict[str, str]] = {
    r"whoever|whomever": "the caller, the reader, the follower: the noun",
    r"nobody": "no reader, no caller, no broker: the noun",
    r"anew": "again, from the start",
    r"set aside|put aside|puts aside": "quarantine, trash",
    r"wish(es|ed)?": "proposal, request",
    r"lonely": "isolated",
    r"in doubt": "outcome unknown",
    r"step(s|ped)? aside": "resign leadership",
    r"reign": "term, controller term",
    r"hearsay|dice": "the field's word",
}
"""Pattern of a banned word or phrase → what to write instead."""

LOG_CALLS: Final = frozenset(["debug", "info", "warning", "error", "critical", "exception"])
TEXT_ARGUMENTS: Final = frozenset({"help", "short_help", "epilog", "description"})
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE: Final = re.compile(r"`[^`]*`")
_DIRECTIVE: Final = re.compile(r"^#\s*(noqa|type:|pragma|!)")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose: `is_comment` for docstrings and comments, else a log line or help text."""

    path: Path
    line: int
    words: str
    is_comment: bool


@dataclass(slots=True)
class Count:
    """Words of docstrings and comments, and how many are of the two counted kinds."""

    words: int = 0
    persons: int = 0
    pronouns: int = 0
    files: set[Path] = field(default_factory=set)

    def add(self, text: Text) -> None:
        """Count the words of one docstring or comment."""
        words = _WORD.findall(_CODE.sub(" ", text.words.lower()))
        self.words += len(words)
        self.persons += sum(word in PERSONS for word in words)
        self.pronouns += sum(word in PRONOUNS for word in words)
        self.files.add(text.path)

    @property
    def persons_rate(self) -> float:
        """Words of PERSONS per 1,000."""
        return 1000 * self.persons / max(1, self.words)

    @property
    def pronouns_rate(self) -> float:
        """Words of PRONOUNS per 1,000."""
        return 1000 * self.pronouns / max(1, self.words)


def python_files(path: Path) -> Iterator[Path]:
    """Every Python file at or below `path`, sorted."""
    yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


@cache
def texts_of(path: Path) -> tuple[Text, ...]:
    """The docstrings, comments, log lines and help texts of one file, read once."""
    return tuple(_texts_of(path))


def _texts_of(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield Text(path, token.start[0], token.string.lstrip("#: "), is_comment=True)
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone is a docstring, of an attribute too.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield Text(path, node.lineno, node.value.value, is_comment=True)
        elif isinstance(node, ast.Call):
            yield from _call_texts(path, node)


def _call_texts(path: Path, call: ast.Call) -> Iterator[Text]:
    if isinstance(call.func, ast.Attribute) and call.func.attr in LOG_CALLS:
        for argument in call.args[:1]:
            yield from _strings(path, argument)
    for keyword in call.keywords:
        if keyword.arg in TEXT_ARGUMENTS:
            yield from _strings(path, keyword.value)


def _strings(path: Path, node: ast.expr) -> Iterator[Text]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield Text(path, part.lineno, part.value, is_comment=False)


def faults_of(text: Text) -> Iterator[str]:
    """Each banned word of the text, with its place and its replacement."""
    plain = _CODE.sub(" ", text.words)
    for pattern, replacement in BANNED.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", plain, re.IGNORECASE):
            line = text.line + plain[: found.start()].count("\n")
            yield f"{text.path}:{line}: {found[0]!r}: write {replacement}"


def count(paths: Sequence[Path]) -> Count:
    """The counts over all files at or below the paths."""
    total = Count()
    for path in paths:
        for file in python_files(path):
            for text in texts_of(file):
                if text.is_comment:
                    total.add(text)
    return total


def main(arguments: Sequence[str]) -> int:
    """Print counts and faults. Returns 1 if a count is over its limit or a word is banned."""
    paths = [Path(argument) for argument in arguments] or [ROOT / tree for tree in TREES]
    failed = False
    for path in paths:
        counted = count([path])
        failed = failed or counted.persons_rate > PERSONS_MAX
        failed = failed or counted.pronouns_rate > PRONOUNS_MAX
        print(
            f"{path}: {counted.words} words; per 1,000: persons {counted.persons_rate:.1f} "
            f"(at most {PERSONS_MAX}), pronouns {counted.pronouns_rate:.1f} "
            f"(at most {PRONOUNS_MAX})"
        )
    for path in paths:
        for file in python_files(path):
            for text in texts_of(file):
                for fault in faults_of(text):
                    failed = True
                    print(fault)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
