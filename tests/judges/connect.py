"""Kafka Connect with its file connectors: standalone, and distributed with exactly-once sources."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from bench.node import free_port
from tests.judges.programs import Program
from tests.judges.trial import Trial, check_values

ENDED_BY_SIGNAL = 143
STEP = 50
STRINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
REQUEST_S = 30.0


def connect_standalone(trial: Trial) -> str:
    """A file through FileStreamSource, a topic and FileStreamSink to a file, while nodes die."""
    name = trial.new_name("connect-file")
    topic = trial.new_topic(name, 1)
    source, sink, files = trial.directory / f"{name}.in", trial.directory / f"{name}.sink", []
    source.touch()
    worker = {
        "bootstrap.servers": trial.servers,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "offset.storage.file.filename": trial.directory / f"{name}.offsets",
        "offset.flush.interval.ms": 1_000,
        "plugin.discovery": "service_load",
        **STRINGS,
    }
    files.append(_properties(trial, f"{name}-worker", worker))
    for config in (_source(name, source, topic), _sink(name, sink, topic)):
        files.append(_properties(trial, config["name"], config))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with trial.java("connect", main, *files) as connect:
        written, kills = _flow(trial, source, sink, connect)
        connect.stop(ENDED_BY_SIGNAL)
    check_values((line.encode() for line in written), trial.read(topic))
    assert sink.read_text().splitlines() == written
    return f"{len(written)} lines from file to file, in order, each once; {kills} kills"


def connect_exactly_once(trial: Trial) -> str:
    """A distributed worker with `exactly.once.source.support`, killed and started again."""
    name = trial.new_name("connect-once")
    topic = trial.new_topic(name, 1)
    source, sink = trial.directory / f"{name}.in", trial.directory / f"{name}.sink"
    source.touch()
    port = free_port()
    worker = {
        "bootstrap.servers": trial.servers,
        "listeners": f"http://127.0.0.1:{port}",
        "group.id": name,
        "exactly.once.source.support": "enabled",
        "config.storage.topic": f"{name}-configs",
        "offset.storage.topic": f"{name}-offsets",
        "status.storage.topic": f"{name}-status",
        "offset.storage.partitions": 3,
        "status.storage.partitions": 1,
        "offset.flush.interval.ms": 1_000,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
        "scheduled.rebalance.max.delay.ms": 0,
        "plugin.discovery": "service_load",
        "consumer.isolation.level": "read_committed",
        "consumer.session.timeout.ms": 6_000,
        "consumer.heartbeat.interval.ms": 1_000,
        **STRINGS,
    }
    file = _properties(trial, f"{name}-worker", worker)
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    lives = 2
    written: list[str] = []
    kills = 0
    for life in range(lives):
        with trial.java("connect", main, file) as connect:
            if life == 0:
                for config in (_source(name, source, topic), _sink(name, sink, topic)):
                    _create(connect, port, config)
            some, killed = _flow(trial, source, sink, connect, begun=len(written))
            written += some
            kills += killed
            # The block's end kills the worker: its transaction is open, its group still has it.
    check_values((line.encode() for line in written), trial.read(topic))
    assert set(sink.read_text().splitlines()) == set(written)
    return (
        f"{len(written)} lines, each once in the topic; {lives} lives of the worker, {kills} kills"
    )


def _properties(trial: Trial, name: str, values: dict[str, Any]) -> str:
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    return trial.file(f"{name}.properties", text)


def _source(name: str, file: Path, topic: str) -> dict[str, str]:
    return {
        "name": f"{name}-source",
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
    }


def _sink(name: str, file: Path, topic: str) -> dict[str, str]:
    return {
        "name": f"{name}-sink",
        "connector.class": "FileStreamSink",
        "tasks.max": "1",
        "file": str(file),
        "topics": topic,
    }


def _create(connect: Program, port: int, config: dict[str, str]) -> None:
    """Create a connector, once the worker is ready to."""

    def is_created() -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/connectors/{config['name']}/config",
            method="PUT",
            data=json.dumps(config).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
                return answer.status in {200, 201}
        except urllib.error.HTTPError as error:
            assert error.code in {404, 409, 500, 503}, error.read()
        except (OSError, HTTPException):
            pass  # it does not listen yet
        return False

    connect.wait_for(f"connector {config['name']}", is_created)


def _flow(
    trial: Trial, source: Path, sink: Path, connect: Program, begun: int = 0
) -> tuple[list[str], int]:
    """Write lines to the source while nodes die; return them and the kills, once all arrived."""
    written: list[str] = []

    def arrived() -> int:
        # More lines at each look, so that there is always something on the way.
        with source.open("a") as file:
            for _ in range(STEP // 5):
                written.append(f"line {begun + len(written)}")
                file.write(f"{written[-1]}\n")
        return _lines(sink)

    kills = trial.disturb(arrived, STEP, connect)
    while len(written) < trial.effort.records:
        arrived()
    wanted = begun + len(written)
    connect.wait_for(f"{wanted} lines at the sink", lambda: _lines(sink) >= wanted)
    return written, kills


def _lines(path: Path) -> int:
    """Return the number of different whole lines: a sink may write a line again."""
    text = path.read_bytes() if path.exists() else b""
    return len(set(text[: text.rfind(b"\n") + 1].splitlines()))
