from __future__ import annotations

import socket
import subprocess

import pytest
from click.testing import CliRunner

from raftlog.cli.main import cli
from raftlog.cluster.process import SERVE
from raftlog.gateway.process import GatewaySettings
from raftlog.http.settings import ServerSettings

COMMAND = (*SERVE[:-1], "gateway")


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[GatewaySettings] = []

    def run(settings: GatewaySettings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("raftlog.cli.gateway.run_gateway", run)
    monkeypatch.setattr("raftlog.cli.gateway.configure_log", lambda _settings: None)
    words = [
        "--home",
        "h1:1,http://h2:2/",
        "--listen",
        "[::1]:3",
        "--allowed-hosts",
        "logs.example",
    ]
    result = CliRunner().invoke(
        cli, ["gateway", *words], env={"RAFTLOG_GATEWAY_ALLOWED_ORIGINS": "https://a.example"}
    )
    assert result.exit_code == 0, result.output
    assert seen == [
        GatewaySettings(
            ("h1:1", "h2:2"),
            ServerSettings(
                host="::1",
                port=3,
                allowed_hosts=("logs.example",),
                allowed_origins=("https://a.example",),
            ),
        )
    ]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--home",
        "--home h",
        "--home h:1,,h:2",
        "--home h:1 --listen 1",
        "--home h:1 --allowed-hosts a:1",
        "--home h:1 --allowed-origins a",
        "--home h:1 --log-level loud",
    ],
)
def test_wrong_options_are_mistakes_of_the_command_line(words: str) -> None:
    assert CliRunner().invoke(cli, ["gateway", *words.split()]).exit_code == 2


def test_a_port_in_use_ends_the_process_with_a_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*COMMAND, "--home", "127.0.0.1:1", "--listen", address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen on {address}" in done.stderr
