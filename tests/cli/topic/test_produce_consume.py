import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from subprocess import PIPE
from uuid import uuid4

import pytest
from click.testing import CliRunner

from raftlog.cli.main import cli
from tests.cli.conftest import Run
from tests.cli.node import RAFTLOG, RunningNode, running_node
from tests.waiting import wait_until

SECONDS_MAX = 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input"


def records(run: Run, topic: str, *arguments: str) -> list[dict[str, object]]:
    lines = run("topic", "consume", topic, "--format", "json", *arguments).stdout.splitlines()
    return [json.loads(line) for line in lines]


def start(node: RunningNode, *arguments: str, **pipes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RAFTLOG, *arguments], env=node.environment, **pipes)


def test_lines_go_in_and_come_out(run: Run, topic: str, file: Path) -> None:
    file.write_bytes(b"one\n\ntwo \xff\n")
    summary = run("topic", "produce", topic, str(file), "-p", "1", "--format", "json")
    document = json.loads(summary.stdout)
    assert (document["records"], document["skipped"], document["bytes_read"]) == (3, 0, 11)
    assert document["partitions"] == [
        {"partition": 1, "records": 3, "first_offset": 0, "last_offset": 2}
    ]
    assert run("topic", "consume", topic).stdout_bytes == b"one\n\ntwo \xff\n"
    assert [record["value"] for record in records(run, topic)] == ["one", "", "dHdvIP8="]


def test_text_summary_is_a_message(run: Run, topic: str, file: Path) -> None:
    file.write_bytes(b"one\n")
    result = run("topic", "produce", topic, str(file))
    assert result.stdout == ""
    assert result.stderr.startswith(f"1 record written to {topic} in ")


def test_keys_decide_the_partition_and_keep_order(run: Run, topic: str, file: Path) -> None:
    file.write_text("".join(f"k{number % 5}={number}\n" for number in range(100)))
    run("topic", "produce", topic, str(file), "--key-separator", "=", "-z", "lz4")
    found = records(run, topic)
    assert len(found) == 100
    for key in {record["key"] for record in found}:
        of_key = [record for record in found if record["key"] == key]
        assert len({record["partition"] for record in of_key}) == 1
        values = [int(str(record["value"])) for record in of_key]
        assert values == sorted(values)


def test_json_and_csv_fields_become_key_and_timestamp(run: Run, topic: str, file: Path) -> None:
    run("topic", "alter-config", topic, "--set", "retention.ms=-1")
    fields = ("--key-field", "id", "--timestamp-field", "at")
    file.write_text('{"id":7,"at":"2013-01-01T10:00:00Z"}\n')
    run("topic", "produce", topic, str(file), "-i", "ndjson", *fields, "-p", "0")
    file.write_text("id,at\n7,1357034400001\n")
    run("topic", "produce", topic, str(file), "-i", "csv", *fields, "-p", "0", "-H", "a=b")
    first, second = records(run, topic)
    assert (first["key"], first["timestamp"]) == ("7", 1357034400000)
    assert first["value"] == '{"id":7,"at":"2013-01-01T10:00:00Z"}'
    assert (second["key"], second["timestamp"]) == ("7", 1357034400001)
    assert second["value"] == '{"id":"7","at":"1357034400001"}'
    assert second["headers"] == [{"key": "a", "value": "b"}]


def test_whole_topic_can_be_copied_through_json(
    run: Run, topic: str, file: Path, tmp_path: Path
) -> None:
    file.write_text(
        '{"key":null,"value":null,"timestamp":1}\n'
        '{"key":"/w==","key_encoding":"base64","value":"","timestamp":2,'
        '"headers":[{"key":"h","value":null}]}\n'
    )
    run("topic", "alter-config", topic, "--set", "retention.ms=-1")
    envelope = ("-i", "ndjson", "--envelope", "-p", "2")
    run("topic", "produce", topic, str(file), *envelope)
    copy = f"copy-{uuid4().hex}"
    run("topic", "create", copy, "-p", "3", "-c", "retention.ms=-1")
    dump = tmp_path / "dump"
    dump.write_text(run("topic", "consume", topic, "--format", "json").stdout)
    run("topic", "produce", copy, str(dump), *envelope)
    expected = [{**record, "topic": copy} for record in records(run, topic)]
    assert records(run, copy) == expected
    assert [record["key"] for record in expected] == [None, "/w=="]


def test_bad_line_is_named_and_what_stands_before_it_is_written(
    run: Run, topic: str, file: Path
) -> None:
    file.write_text('1\n2\n{"x\n3\n')
    result = run("topic", "produce", topic, str(file), "-i", "ndjson", "-p", "0", code=2)
    assert f"{file}, line 3: is not JSON" in result.stderr
    assert "2 records" in result.stderr
    assert run("topic", "consume", topic).stdout == "1\n2\n"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--key-field", "id", "--envelope"), "--key-field is for --input ndjson or csv"),
        (("-i", "ndjson", "--envelope", "--key-field", "id"), "drop the --…-field"),
        (("--delimiter", ""), "--delimiter is for --input csv"),
        (("-i", "csv", "--delimiter", ""), "a csv delimiter is one character"),
        ((), "--transactional-id needs --acks all"),
        (("--acks", "all"), "'header' is not NAME=VALUE"),
    ],
)
def test_options_are_checked_from_the_input_to_the_headers(
    options: tuple[str, ...], error: str
) -> None:
    arguments = ("--acks", "1", "--transactional-id", "id", "--header", "header", *options)
    result = CliRunner().invoke(cli, ["topic", "produce", "topic", *arguments])
    assert result.exit_code == 2
    assert error in result.stderr


def test_bad_lines_can_be_skipped_and_are_counted(run: Run, topic: str, file: Path) -> None:
    file.write_text("1\n" + "bad\n" * 12 + "2\n")
    result = run(
        "topic", "produce", topic, str(file), "-i", "ndjson", "-p", "0", "--skip-bad",
        "--format", "json",
    )  # fmt: skip
    assert json.loads(result.stdout)["skipped"] == 12
    assert result.stderr.count("raftlog: skipped") == 10
    assert "further lines" in result.stderr
    assert run("topic", "consume", topic).stdout == "1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-i", "lines", "--key-field", "x"), 2),
        (("-i", "csv", "--envelope"), 2),
        (("-i", "csv", "--delimiter", ";;"), 2),
        (("-i", "ndjson", "--key-separator", ":"), 2),
        (("-i", "ndjson", "--envelope", "--key-field", "x"), 2),
        (("--key-separator", ""), 2),
        (("--header", "x"), 2),
        (("--acks", "2"), 2),
        (("--partition", "99"), 3),
        (("/does/not/exist",), 3),
        (("/",), 1),
    ],
)
def test_wrong_usage_of_produce(
    run: Run, topic: str, file: Path, arguments: tuple[str, ...], code: int
) -> None:
    file.write_text("x\n")
    result = run("topic", "produce", topic, str(file), *arguments, code=code)
    assert result.stderr
    assert run("topic", "consume", topic).stdout == ""


def test_unknown_topic(run: Run, file: Path) -> None:
    file.write_text("x\n")
    assert "40401" in run("topic", "produce", "missing", str(file), code=3).stderr
    assert "40401" in run("topic", "consume", "missing", code=3).stderr


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((), "0123456789"),
        (("-o", "earliest"), "0123456789"),
        (("-o", "3"), "3456789"),
        (("-o", "+8"), "89"),
        (("-o", "-2"), "89"),
        (("-o", "-200"), "0123456789"),
        (("-o", "@1004"), "456789"),
        (("-o", "@9999"), ""),
        (("-o", "10"), ""),
        (("-u", "3"), "012"),
        (("-o", "@1002", "-u", "@1005"), "234"),
        (("-o", "5", "-u", "5"), ""),
        (("-o", "5", "-u", "2"), ""),
        (("-n", "4"), "0123"),
        (("-n", "0"), ""),
        (("-o", "7", "-n", "99"), "789"),
        (("-p", "1"), ""),
        (("-p", "0-2"), "0123456789"),
    ],
)
def test_where_reading_begins_and_ends(
    run: Run, topic: str, file: Path, arguments: tuple[str, ...], values: str
) -> None:
    file.write_text("".join(f'{{"value":"{n}","timestamp":{1000 + n}}}\n' for n in range(10)))
    run("topic", "produce", topic, str(file), "-i", "ndjson", "--envelope", "-p", "0")
    assert run("topic", "consume", topic, "--format", "%v", *arguments).stdout == values


def test_offset_that_no_partition_has_is_an_error(run: Run, topic: str, file: Path) -> None:
    file.write_text("x\ny\n")
    run("topic", "produce", topic, str(file), "-p", "0")
    assert "41601" in run("topic", "consume", topic, "-o", "3", code=1).stderr
    run("topic", "trim-prefix", topic, "-o", "1", "-p", "0", "--no-confirm")
    assert "41601" in run("topic", "consume", topic, "-o", "0", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-o", "soon"), 2),
        (("-f", "-u", "5"), 2),
        (("--format", "yaml"), 2),
        (("--format", "%z"), 2),
        (("--format", "json", "-k"), 2),
        (("-p", "7"), 3),
        (("-n", "-1"), 2),
    ],
)
def test_wrong_usage_of_consume(
    run: Run, topic: str, arguments: tuple[str, ...], code: int
) -> None:
    result = run("topic", "consume", topic, *arguments, code=code)
    assert result.stderr
    assert result.stdout == ""


def test_several_topics_and_keys(run: Run, topic: str, file: Path) -> None:
    other = f"other-{uuid4().hex}"
    run("topic", "create", other)
    file.write_text("v\n")
    run("topic", "produce", topic, str(file), "--key", "a")
    run("topic", "produce", other, str(file), "--key", "b")
    text = run("topic", "consume", topic, other, "--print-key", "--key-separator", "=").stdout
    assert sorted(text.splitlines()) == ["a=v", "b=v"]


def test_pipes_work_in_both_directions(node: RunningNode, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    subprocess.run(
        [*RAFTLOG, "topic", "produce", topic, "-p", "0"],
        input=lines, env=node.environment, check=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    result = subprocess.run(
        [*RAFTLOG, "topic", "consume", topic],
        env=node.environment, check=True, capture_output=True,
    )  # fmt: skip
    assert result.stdout == lines
    assert result.stderr == b""


def test_reader_that_leaves_ends_consume_quietly(node: RunningNode, topic: str) -> None:
    subprocess.run(
        [*RAFTLOG, "topic", "produce", topic, "-p", "0"],
        input=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000,
        env=node.environment, check=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    with start(
        node, "topic", "consume", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS_MAX) == 0


def unread_bytes(pipe: int) -> int:
    """The bytes in a pipe that its reader has not read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_line_of_an_open_pipe_is_followed_at_once_and_ctrl_c_ends_both(
    node: RunningNode, topic: str
) -> None:
    with (
        start(
            node, "topic", "produce", topic, "--format", "json", stdin=PIPE, stdout=PIPE
        ) as producer,
        start(node, "topic", "consume", topic, "--follow", stdout=PIPE) as consumer,
    ):
        try:
            assert producer.stdin is not None
            assert producer.stdout is not None
            assert consumer.stdout is not None
            pipe = producer.stdin.fileno()
            for line in (b"first\n", b"second\n"):
                producer.stdin.write(line)
                producer.stdin.flush()
                assert consumer.stdout.readline() == line
            # Text without a line end is no line yet, and is not sent.
            producer.stdin.write(b"unfinished")
            producer.stdin.flush()
            wait_until(lambda: unread_bytes(pipe) == 0)
            # Ctrl-C also ends the program before the pipe. The producer finds both at once.
            producer.send_signal(signal.SIGSTOP)
            producer.send_signal(signal.SIGINT)
            producer.stdin.close()
            producer.send_signal(signal.SIGCONT)
            assert producer.wait(SECONDS_MAX) == 130
            assert json.loads(producer.stdout.read())["records"] == 2
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(SECONDS_MAX) == 130
            assert consumer.stdout.read() == b""
        finally:
            producer.kill()
            consumer.kill()


def test_starting_at_the_end_waits_for_what_comes(
    node: RunningNode, run: Run, topic: str, file: Path
) -> None:
    file.write_text("old\n")
    run("topic", "produce", topic, str(file))
    consumer = start(
        node, "topic", "consume", topic, "-o", "latest", "-n", "2", stdout=subprocess.PIPE
    )
    assert consumer.stdout is not None
    os.set_blocking(consumer.stdout.fileno(), False)
    written = 0
    received = b""
    # Before its first output the command may not have found the end: produce records until two
    # arrived.
    while consumer.poll() is None and written < 1_000:
        file.write_text(f"new {written}\n")
        run("topic", "produce", topic, str(file))
        written += 1
        received += consumer.stdout.read() or b""
    assert consumer.wait(SECONDS_MAX) == 0
    received += consumer.stdout.read() or b""
    consumer.stdout.close()
    lines = received.splitlines()
    assert len(lines) == 2
    assert b"old" not in lines


def test_memory_stays_bounded_on_a_long_input(node: RunningNode, topic: str) -> None:
    program = (
        "import resource, sys; from raftlog.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    sizes_kib = []
    for megabytes in (1, 60):
        process = subprocess.run(
            f"yes {'x' * 99} | head -c {megabytes}000000 | "
            f"{RAFTLOG[0]} -c '{program}' topic produce {topic} --acks 1 --format json",
            shell=True, executable="/bin/bash", env=node.environment, check=True,
            capture_output=True,
        )  # fmt: skip
        assert json.loads(process.stdout)["records"] == megabytes * 10_000
        sizes_kib.append(int(process.stderr.splitlines()[-1]))
    assert sizes_kib[1] - sizes_kib[0] < 120 * 1024


def test_produce_that_waits_says_what_for(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--auto-create-topics") as own:
        process = start(own, "topic", "produce", "made", stdin=PIPE, stderr=PIPE)
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            lines: list[str] = []
            wait_until(lambda: values(own, "made") == [b"one"])
            own.process.send_signal(signal.SIGSTOP)
            process.stdin.write(b"two\n")
            process.stdin.flush()
            # Reads until the line comes: the command writes nothing else to stderr.
            lines.append(process.stderr.readline().decode())
            own.process.send_signal(signal.SIGCONT)
            _, rest = process.communicate(timeout=SECONDS_MAX)
        finally:
            own.process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        assert lines == [
            f"raftlog: waiting for partition 0 of made: {own.address} has not answered yet\n"
        ]
        assert rest.decode().startswith("2 records written to made")
        assert process.returncode == 0
        assert values(own, "made") == [b"one", b"two"]


def values(node: RunningNode, topic: str) -> list[bytes]:
    command = [*RAFTLOG, "topic", "consume", topic]
    done = subprocess.run(command, env=node.environment, capture_output=True, check=False)
    return done.stdout.splitlines()
