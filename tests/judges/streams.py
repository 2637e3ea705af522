"""Kafka Streams: WordCountDemo with `exactly_once_v2`, nodes and the application killed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Final

from tests.judges.trial import Trial

MAIN: Final = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
INPUT: Final = "streams-plaintext-input"
OUTPUT: Final = "streams-wordcount-output"
WORDS: Final = [f"word{number}" for number in range(40)]
WORDS_PER_LINE: Final = 5
LINES: Final = 20
STEP: Final = 100
SEED: Final = 1


def streams_exactly_once(trial: Trial) -> str:
    """Count words, and compare: each word's counts are 1, 2, 3 and so on, each exactly once."""
    for topic in (INPUT, OUTPUT):
        trial.create(topic)
    name = trial.new_name("streams")
    settings = {
        "bootstrap.servers": trial.servers,
        "application.id": name,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": trial.directory / name,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
    }
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    file = trial.file(f"{name}.properties", text)
    drawn = random.Random(SEED)
    counts: Counter[str] = Counter()
    lives = 2

    def write() -> None:
        lines = [drawn.choices(WORDS, k=WORDS_PER_LINE) for _ in range(LINES)]
        for words in lines:
            counts.update(words)
        trial.write(INPUT, (" ".join(words).encode() for words in lines))

    def counted() -> int:
        write()
        return len(trial.read(OUTPUT))

    kills = 0
    for _ in range(lives):
        # The end of a block kills the application in the middle of its transactions.
        with trial.java("streams", MAIN, file) as streams:
            kills += trial.disturb(counted, STEP, streams)
    with trial.java("streams", MAIN, file) as streams:
        while counts.total() < trial.effort.records:
            write()
        streams.wait_for(
            f"{counts.total()} counts", lambda: len(trial.read(OUTPUT)) >= counts.total()
        )
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for row in trial.read(OUTPUT):
        assert row.key is not None and row.value is not None
        steps[row.key.decode()].append(int.from_bytes(row.value))
    for word, total in counts.items():
        assert steps[word] == list(range(1, total + 1)), f"{word}: {total}, {steps[word]}"
    assert set(steps) == set(counts)
    return (
        f"{counts.total()} words, every count exactly once and in order; {kills} kills of nodes, "
        f"{lives} of the application"
    )
