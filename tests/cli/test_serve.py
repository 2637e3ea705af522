import json
import os
import re
import signal
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raftlog.cli.main import cli
from raftlog.cluster.process import free_ports
from tests.cli.node import RAFTLOG, RunningNode, clean_environment, running_node
from tests.waiting import DEADLINE_S, wait_until


def serve(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    unset = {name: None for name in os.environ if name.startswith("RAFTLOG_")}
    return CliRunner().invoke(cli, ["serve", *arguments], env={**unset, **(environment or {})})


def test_every_setting_can_be_shown_before_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'data_dir = "from-file"\nlisten = "127.0.0.1:1"\n'
        '[topic_defaults]\n"retention.ms" = 1000\n[limits]\njson_depth_max = 10\n'
    )
    result = serve(
        "--config", str(file), "--show-settings", "--listen", "127.0.0.1:2",
        environment={"RAFTLOG_LOG_LEVEL": "debug", "RAFTLOG_LISTEN": "127.0.0.1:3"},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    settings = json.loads(result.stdout)
    assert settings["data_dir"] == "from-file"
    assert settings["listen"] == "127.0.0.1:2"
    assert settings["topic_defaults"] == {"retention.ms": "1000"}
    assert settings["limits"]["json_depth_max"] == 10
    assert settings["log"] == {"level": "debug", "format": "text"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--data-dir is missing"),
        (["--data-dir", "d", "--node-id", "0"], "--node-id: '0': Expected int >= 1"),
        (["--data-dir", "d", "--node-id", "one"], "--node-id: 'one'"),
        (["--data-dir", "d", "--listen", "nowhere"], "'nowhere' is not an address"),
        (["--data-dir", "d", "--advertised", "x:99999"], "'x:99999' is not an address"),
        (["--data-dir", "d", "--kafka-listen", "x"], "--kafka-listen: 'x' is not an address"),
        (["--data-dir", "d", "--kafka-advertise", "x:1"], "give --kafka-listen HOST:PORT"),
        (["--data-dir", "d", "--flush", "never"], "'never' is not one of 'sync', 'async'"),
        (["--data-dir", "d", "--limits-json-depth-max", "1"], "--limits-json-depth-max: '1'"),
        (["--data-dir", "d", "--topic-defaults", "x"], "'x' is not NAME=VALUE"),
        (["--config", "missing.toml"], "missing.toml"),
    ],
)
def test_wrong_settings_are_wrong_usage_and_named(arguments: list[str], complaint: str) -> None:
    result = serve(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_unknown_key_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[limits]\njson_dept_max = 3\n")
    result = serve("--data-dir", "d", "--config", str(file))
    assert result.exit_code == 2
    assert "limits.json_dept_max; did you mean limits.json_depth_max?" in result.stderr


def test_misspelt_variable_is_reported() -> None:
    result = serve("--data-dir", "d", "--show-settings", environment={"RAFTLOG_FLUSHH": "async"})
    assert result.exit_code == 0
    assert "RAFTLOG_FLUSHH is not a setting" in result.stderr


def test_help_names_every_setting_with_its_description() -> None:
    result = serve("--help")
    assert result.exit_code == 0
    assert "--limits-body-bytes-max" in result.output
    assert "Request body as it arrives on the wire" in result.output
    assert "Table [log]:" in result.output
    assert "[default: sync]" in " ".join(result.output.split())


THREE = "1@10.0.0.1:8082,2@10.0.0.2:8082,3@10.0.0.3:8082"
SECRET = "correct horse battery staple"


@pytest.mark.parametrize(
    ("name", "value"), [("voters", THREE), ("join", "10.0.0.1:8082,10.0.0.2:8082")]
)
def test_peers_are_named_by_flag_environment_or_file(tmp_path: Path, name: str, value: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'{name} = "{value}"\n')
    base = ("--data-dir", "d", "--show-settings")
    for result in (
        serve(*base, f"--{name}", value),
        serve(*base, environment={f"RAFTLOG_{name.upper()}": value}),
        serve(*base, "--config", str(file)),
    ):
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)[name] == value


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--voters", THREE, "--join", "10.0.0.1:8082"], "give one of them"),
        (["--voters", "10.0.0.1:8082"], "is not a voter"),
        (["--join", "10.0.0.1"], "'10.0.0.1' is not an address"),
        (["--cluster-secret", SECRET, "--cluster-secret-file", "f"], "given twice"),
    ],
)
def test_peers_that_cannot_be_meant_are_wrong_usage(arguments: list[str], complaint: str) -> None:
    result = serve("--data-dir", "d", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert SECRET not in result.output


def test_secret_is_taken_from_everywhere_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'cluster_secret = "{SECRET}"\n')
    base = ("--data-dir", "d", "--show-settings")
    environment = {"RAFTLOG_CLUSTER_SECRET": SECRET}
    for result in (
        serve(*base, "--cluster-secret", SECRET),
        serve(*base, environment=environment),
        serve(*base, "--config", str(file)),
    ):
        assert json.loads(result.stdout)["cluster_secret"] == "(not shown)"
        assert SECRET not in result.output
    assert SECRET not in serve("--help", environment=environment).output
    file.write_text("cluster_secret = 1234567890123456\n")
    wrong = serve(*base, "--config", str(file))
    assert wrong.exit_code == 2
    assert "cluster_secret in" in wrong.stderr
    assert "1234567890123456" not in wrong.output


def test_directory_remembers_what_a_restart_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "directory.json").write_text('{"directory_id":"d1","node_id":2}')
    (tmp_path / "node.json").write_text('{"listen":"127.0.0.1:9","advertised":"a:9","rack":"r1"}')
    names = ("node_id", "listen", "advertised", "rack")

    def shown(*arguments: str, environment: dict[str, str] | None = None) -> list[object]:
        result = serve(
            "--data-dir", str(tmp_path), "--show-settings", *arguments, environment=environment
        )
        assert result.exit_code == 0, result.output
        return [json.loads(result.stdout)[name] for name in names]

    assert shown() == [2, "127.0.0.1:9", "a:9", "r1"]
    assert shown("--rack", "r2", environment={"RAFTLOG_LISTEN": "127.0.0.1:8"}) == [
        2, "127.0.0.1:8", None, "r2",
    ]  # fmt: skip


def test_kafka_listener_is_set_by_flag_environment_or_file_and_remembered(tmp_path: Path) -> None:
    values = {"kafka_listen": "127.0.0.1:9092", "kafka_advertise": "gateway=lb.lan:9092"}
    file = tmp_path / "node.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    known = tmp_path / "known"
    known.mkdir()
    (known / "directory.json").write_text('{"directory_id":"d1","node_id":2}')
    (known / "node.json").write_text(json.dumps(values))
    base = ("--data-dir", "d", "--show-settings")
    flags = [word for name, value in values.items() for word in (_flag(name), value)]
    variables = {f"RAFTLOG_{name.upper()}": value for name, value in values.items()}
    for result in (
        serve(*base, *flags),
        serve(*base, environment=variables),
        serve(*base, "--config", str(file)),
        serve("--data-dir", str(known), "--show-settings"),
    ):
        assert result.exit_code == 0, result.output
        assert values.items() <= json.loads(result.stdout).items()
    off = serve("--data-dir", str(known), "--show-settings", "--kafka-listen", "none")
    assert json.loads(off.stdout)["kafka_advertise"] is None
    default = json.loads(serve(*base).stdout)
    assert (default["kafka_listen"], default["kafka_advertise"]) == (None, None)
    assert "9092" in serve("--help").output


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_damaged_memory_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "directory.json").write_text("{")
    result = serve("--data-dir", str(tmp_path), "--show-settings")
    assert result.exit_code == 1
    assert "directory.json in the data directory is damaged" in result.stderr


def node_rows(node: RunningNode) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{node.address}/v1/nodes") as answer:
        rows: list[dict[str, Any]] = json.load(answer)["nodes"]
    return rows


def test_restart_needs_nothing_but_the_data_directory(tmp_path: Path) -> None:
    with running_node(tmp_path, "--node-id", "2", "--rack", "r1") as node:
        assert node.stop()[0] == 0
    with running_node(tmp_path) as node:
        (row,) = node_rows(node)
        assert (row["node_id"], row["rack"]) == (2, "r1")
        assert node.stop()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_node_tells_its_address_when_ready_and_stops_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_node(tmp_path) as node:
        with urllib.request.urlopen(f"http://{node.address}/ready") as answer:
            assert answer.status == 200
        assert f"serves at http://{node.address}" in node.log[-1]
        code, rest = node.stop(number)
    assert code == 0
    assert "stopped cleanly" in rest


def test_kafka_listener_is_logged_registered_and_remembered(tmp_path: Path) -> None:
    with running_node(tmp_path, "--kafka-listen", "127.0.0.1:0") as node:
        told = re.search(r"Kafka clients at (127\.0\.0\.1:\d+)", node.log[-1])
        assert told is not None
        assert node_rows(node)[0]["kafka"] == told[1]
        assert node.stop()[0] == 0
    with running_node(tmp_path) as node:
        assert "Kafka clients at 127.0.0.1:" in node.log[-1]
        assert node.stop()[0] == 0
    with running_node(tmp_path, "--kafka-listen", "none") as node:
        assert "Kafka" not in node.log[-1]
        assert node_rows(node)[0]["kafka"] is None
        assert node.stop()[0] == 0


def test_kafka_listener_beyond_loopback_is_warned_of(tmp_path: Path) -> None:
    with running_node(tmp_path, "--kafka-listen", "0.0.0.0:0") as node:
        (warning,) = (line for line in node.log if "without authentication" in line)
        assert "listening on 0.0.0.0:" in warning
        assert node.address not in warning
        assert node.stop()[0] == 0


def test_kafka_port_in_use_leaves_no_directory(tmp_path: Path) -> None:
    with running_node(tmp_path / "first") as node:
        second = subprocess.run(
            [*RAFTLOG, "serve", "--data-dir", str(tmp_path / "second"), "--listen", "127.0.0.1:0",
             "--kafka-listen", node.address],
            capture_output=True, text=True, timeout=20, env=clean_environment(), check=False,
        )  # fmt: skip
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert f"cannot listen on {node.address}: another raftlog node has this port" in line
        assert "--kafka-listen HOST:PORT" in line
        assert not (tmp_path / "second").exists()


def test_log_can_be_json_from_the_environment(tmp_path: Path) -> None:
    with running_node(tmp_path, environment={"RAFTLOG_LOG_FORMAT": "json"}) as node:
        document = json.loads(node.log[-1])
        assert document["level"] == "info"
        assert node.address in document["message"]
        _, rest = node.stop()
    assert all(json.loads(line) for line in rest.splitlines())


def test_second_node_in_one_directory_is_refused_with_a_reason(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        second = subprocess.run(
            [*RAFTLOG, "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"],
            capture_output=True, text=True, timeout=20, env=clean_environment(), check=False,
        )  # fmt: skip
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert "cannot start" in line
        assert f"is in use by another raftlog process ({node.process.pid})" in line
        assert node.process.poll() is None


def test_port_in_use_is_one_line_and_leaves_no_directory(tmp_path: Path) -> None:
    with running_node(tmp_path / "first") as node:
        second = subprocess.run(
            [*RAFTLOG, "serve", "--data-dir", str(tmp_path / "second"), "--listen", node.address],
            capture_output=True, text=True, timeout=20, env=clean_environment(), check=False,
        )  # fmt: skip
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert f"cannot listen on {node.address}: another raftlog node has this port" in line
        assert not (tmp_path / "second").exists()


def test_node_writes_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with running_node(tmp_path / "made" / "data") as node:
            node.stop()
    finally:
        os.umask(before)
    made = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
    wide = {str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077}
    assert len(made) > 8
    assert wide == {}


@pytest.mark.parametrize("option", ["--voters", "--join"])
def test_directory_that_began_alone_does_not_become_one_of_three_by_an_option(
    tmp_path: Path, option: str
) -> None:
    """It would go on with its one vote, while its operator believes in three."""
    directory = tmp_path / "data"
    with running_node(directory) as node:
        address = node.address
        node.stop()
    others = "127.0.0.1:2", "127.0.0.1:3"
    before = {path.name: path.read_bytes() for path in directory.glob("*.*")}
    asked = {"--voters": f"1@{address},2@{others[0]},3@{others[1]}", "--join": ",".join(others)}
    refused = subprocess.run(
        [*RAFTLOG, "serve", "--data-dir", str(directory), "--listen", address,
         option, asked[option], "--cluster-secret", SECRET],
        capture_output=True, text=True, timeout=20, env=clean_environment(), check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    line = refused.stderr.splitlines()[-1]
    assert "this node has the only vote" in line
    assert f"start without {option}" in line
    assert "Traceback" not in refused.stderr
    assert {path.name: path.read_bytes() for path in directory.glob("*.*")} == before
    with running_node(directory) as again:
        with urllib.request.urlopen(f"http://{again.address}/ready") as answer:
            assert answer.status == 200
        again.stop()


def test_node_without_standard_streams_gives_their_descriptors_to_no_file(tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    # With a shell in between, since Python gives a child streams of its own.
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *RAFTLOG, "serve", "--listen",
         f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")],
        env=clean_environment(),
    )  # fmt: skip
    try:
        wait_until(lambda: _is_ready(port))
        streams = [Path(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        assert [str(stream.readlink()) for stream in streams] == [os.devnull] * 3
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
        return bool(answer.status == 200)
    return False


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_runs_without_a_standard_stream(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *RAFTLOG, "version"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
