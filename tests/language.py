"""Language rules of docstrings, comments, log lines, help texts and documents.

`python -m tests.language [PATH ...]` prints the counts per 1,000 words for each path, and every
fault with its place. The rules are sentence shapes (semicolons, colons inside a sentence, the
pronoun "one", machines that "tell" or "ask"), first sentences of docstrings, and banned words.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from tests.prose import CODE, Passage, Text, passages_of, python_files, texts_of
from tests.ratchet import Figure

ROOT: Final = Path(__file__).parent.parent
TREES: Final = ("raftlog", "client", "bench", "scripts", "tests")
OF_THE_RULES: Final = frozenset(
    {"prose.py", "language.py", "tidy.py", "ratchet.py"}
    | {"test_prose.py", "test_language.py", "test_tidy.py"}
)
"""Modules that name what they ban."""

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
"""Pattern of a word that no module has → what to write instead."""
BANNED_SHAPES: Final[dict[str, str]] = {
    r",\s+too(?=\s*(?:[.,;:!?)]|$))": "also, before the verb",
    r"\b(?:go|goes|going|went|gone)\s+on\b": "continue, keep, resume",
    r"\bof\s+(?:its|their)\s+own\b": "its own, separate",
    r"\bmeanwhile\b": "a clause with while, until or during",
    r"\banew\b": "again, from the start",
    r"\b(?:who|whom|whoever|whomever|nobody)\b": "the noun",
}
"""Pattern that pages and modules lose, package by package → what to write instead."""

RATES: Final[dict[str, float]] = {"semicolon": 2, "colon": 6, "one": 0.5, "tell": 1}
"""Shape → most of it per 1,000 words."""
FIRST_WORDS_MAX: Final = 15
"""Most words of a docstring's first sentence."""
PREPOSITIONS: Final = frozenset(
    """
    about above across after against along among around as at before behind below beneath
    beside besides between beyond by during except for from in inside into like near of on
    onto out outside over past per since than through throughout till to toward towards
    under until up upon via with within without
    """.split()  # noqa: SIM905  a list of strings has a line for each
)

_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE: Final = re.compile(r"`[^`]*`")
_COLON: Final = re.compile(r":(?=[\"')]*\s+\S)")
"""A colon with prose behind it. The colon of an emphasised label (`*Rejected:*`) is none."""
_COLON_OF_LOG: Final = re.compile(r":(?=\s+[^\s%])")
_LABEL: Final = re.compile(r"\W{0,3}(?:[^\s:]+\s+){0,3}[^\s:]+:(?=[*_]*\s)")
_BOLD_LABEL: Final = re.compile(r"\*\*[^*]+(?:\*\*:|:\*\*)")
_ONE: Final = re.compile(
    r"""\bones\b|\bone's\b
    |\bone(?=\s*(?:[.,;:!?)]|$)
      |\s+(?:that|which|who|whose|where|in|into|with|without|for|is|was|has|had|at|on|to|by|from|and
        |or|but|as|than|before|after|can|may|must|does|did|will|would|under|over|if|when|while|until
        |it|the|an|not|only|alone|below|above|behind|between|they|gets|holds|comes)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_NUMERAL_BEFORE: Final = re.compile(
    r"(?:least|most|exactly|than|just|by|minus|plus|zero|to|or|from|every|one|version|phase|number"
    r"|step|index|epoch|generation|term|after|of|is|are|was|=)\s+$",
    re.IGNORECASE,
)
_NUMERAL_AFTER: Final = re.compile(
    r"\s+(?:(?:or|to|by|and)\s+(?:more|two|one|many|several|none|the\s+same|a\s+half)"
    r"|at\s+a\s+time|after\s+the\s+other|in\s+(?:\d|ten|a\s))\b"
)
_TELL: Final = re.compile(
    r"\b(?:tells?|told|telling|says?|said|saying|learn(?:s|ed|t|ing)?|ask(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(
    r"(?<!e\.g)(?<!i\.e)(?<!\bcf)(?<!\bvs)(?<!\betc)[.!?](?=[)\"'*]*(?:\s|$))"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A shape or word that the rules limit, with its place."""

    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.message}"


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


def files_of(path: Path) -> list[Path]:
    """Every module and page at or below `path`; generated pages are left out."""
    if path.is_file():
        return [path]
    pages = (page for page in sorted(path.rglob("*.md")) if is_written(page))
    return [file for file in [*python_files(path), *pages] if file.name not in OF_THE_RULES]


def is_written(page: Path) -> bool:
    """Whether a page is written by hand and part of the repository."""
    return not {".venv", "node_modules", "reference"} & set(page.parts)


def faults_of(text: Text) -> Iterator[str]:
    """Each banned word of the text, with its place and its replacement."""
    plain = _CODE.sub(" ", text.words)
    for pattern, replacement in BANNED.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", plain, re.IGNORECASE):
            line = text.line + plain[: found.start()].count("\n")
            yield f"{text.path}:{line}: {found[0]!r}: write {replacement}"


def words_in(passage: Passage) -> int:
    """Words of the passage; a piece of code is none."""
    return sum(word != CODE for word in _WORD.findall(passage.text))


def shapes_of(passage: Passage) -> Iterator[Fault]:
    """Each limited shape, first sentence and banned word of the passage."""
    text = passage.text
    for found in re.finditer(";", text):
        yield _fault(passage, "semicolon", found)
    for found in _inner_colons(passage):
        yield _fault(passage, "colon", found)
    for found in _ONE.finditer(text):
        is_numeral = _NUMERAL_BEFORE.search(text, 0, found.start()) and found[0].lower() == "one"
        if not is_numeral and not _NUMERAL_AFTER.match(text, found.end()):
            yield _fault(passage, "one", found)
    for found in _TELL.finditer(text):
        yield _fault(passage, "tell", found)
    for pattern, replacement in BANNED_SHAPES.items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield _fault(passage, "banned", found, f", write {replacement}")
    if passage.opens_docstring:
        yield from _first_sentence(passage)


def _inner_colons(passage: Passage) -> Iterator[re.Match[str]]:
    """Colons with prose behind them, except for a label's and one before a logged value."""
    pattern = _COLON_OF_LOG if passage.kind == "log" else _COLON
    label = _BOLD_LABEL.match(passage.text)
    if label is None and passage.is_item:
        label = _LABEL.match(passage.text)
    yield from pattern.finditer(passage.text, label.end() if label else 0)


def _first_sentence(passage: Passage) -> Iterator[Fault]:
    """Whether a docstring opens with a preposition, or with too long a sentence."""
    end = _SENTENCE_END.search(passage.text)
    sentence = passage.text[: end.start() if end else len(passage.text)]
    shown = " ".join(sentence.split())[:90]
    opening = _WORD.match(sentence.lstrip("\"'(*"))
    if opening and opening[0].lower() in PREPOSITIONS:
        yield Fault("preposition", passage.place(), shown)
    words = [word for word in sentence.split() if any(map(str.isalnum, word))]
    if len(words) > FIRST_WORDS_MAX:
        yield Fault("long-first", passage.place(), f"{len(words)} words: {shown}")


def _fault(passage: Passage, rule: str, found: re.Match[str], advice: str = "") -> Fault:
    excerpt = passage.text[max(0, found.start() - 35) : found.end() + 25]
    return Fault(rule, passage.place(found.start()), f"…{' '.join(excerpt.split())}…{advice}")


@cache
def _file_faults(file: Path) -> tuple[int, tuple[Fault, ...]]:
    """Words of a file, and its faults."""
    passages = passages_of(file)
    return (
        sum(map(words_in, passages)),
        tuple(fault for passage in passages for fault in shapes_of(passage)),
    )


def shapes(files: Sequence[Path]) -> tuple[int, list[Fault]]:
    """Words of the files, and each fault in them."""
    results = [_file_faults(file) for file in files]
    return sum(words for words, _ in results), [fault for _, found in results for fault in found]


def allowed(rule: str, words: int) -> int:
    """Faults of a rule that a text of so many words may have."""
    return math.ceil(RATES[rule] * words / 1000) if rule in RATES else 0


def figures(place: str, files: Sequence[Path]) -> list[Figure]:
    """The count of each rule over the files of a place."""
    words, found = shapes(files)
    counts = Counter(fault.rule for fault in found)
    rules = [*RATES, "banned", "preposition", "long-first"]
    return [Figure(rule, place, counts[rule], allowed(rule, words)) for rule in rules]


def count(paths: Sequence[Path]) -> Count:
    """The counts over all files at or below the paths."""
    total = Count()
    for path in paths:
        for file in python_files(path):
            if file.suffix == ".py":
                for text in texts_of(file):
                    if text.is_comment:
                        total.add(text)
    return total


def _report(path: Path) -> bool:
    """Print the counts and faults of a path. Returns whether a limit is exceeded."""
    counted = count([path])
    files = files_of(path)
    words, found = shapes(files)
    counts = Counter(fault.rule for fault in found)
    for fault in sorted(found, key=lambda fault: fault.rule):
        print(fault)
    failed = counted.persons_rate > PERSONS_MAX or counted.pronouns_rate > PRONOUNS_MAX
    for file in python_files(path):
        if file.suffix == ".py" and file.name not in OF_THE_RULES:
            for text in texts_of(file):
                for banned in faults_of(text):
                    failed = True
                    print(banned)
    print(
        f"{path}: {words} words. Per 1,000: persons {counted.persons_rate:.1f} "
        f"(at most {PERSONS_MAX}), pronouns {counted.pronouns_rate:.1f} (at most {PRONOUNS_MAX})"
    )
    for rule, rate in RATES.items():
        per_1000 = 1000 * counts[rule] / max(1, words)
        failed = failed or counts[rule] > allowed(rule, words)
        print(f"  {rule} {counts[rule]}: {per_1000:.1f} per 1,000 (at most {rate})")
    for rule in ("banned", "preposition", "long-first"):
        failed = failed or counts[rule] > 0
        print(f"  {rule} {counts[rule]} (at most 0)")
    return failed


def main(arguments: Sequence[str]) -> int:
    """Print counts and faults. Returns 1 if a count is over its limit or a word is banned."""
    paths = [Path(argument) for argument in arguments] or [ROOT]
    failed = [_report(path) for path in paths]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
