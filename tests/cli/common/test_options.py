import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.common.offsets import EARLIEST, LATEST, Anchor, Position, parse_position
from raftlog.cli.common.options import (
    config_pairs,
    iso_time,
    partition_numbers,
    servers_option,
    timestamp_ms,
)

NOW_MS = 1_700_000_000_000


@click.command()
@servers_option
def show(servers: str) -> None:
    click.echo(servers)


@pytest.mark.parametrize(
    ("arguments", "environment", "shown"),
    [
        ([], {}, "127.0.0.1:8082"),
        ([], {"RAFTLOG_SERVERS": "a:1"}, "a:1"),
        (["--servers", "b:2, http://c:3/"], {"RAFTLOG_SERVERS": "a:1"}, "b:2,c:3"),
        (["-X", "[::1]:8082"], {}, "[::1]:8082"),
    ],
)
def test_servers_come_from_flag_or_environment(
    arguments: list[str], environment: dict[str, str], shown: str
) -> None:
    result = CliRunner().invoke(show, arguments, env=environment)
    assert result.output == f"{shown}\n"


@pytest.mark.parametrize(
    "servers", ["", ",", "host", "host:", ":1", "host:x", "host:70000", "https://host:1"]
)
def test_servers_that_are_none_are_wrong_usage(servers: str) -> None:
    result = CliRunner().invoke(show, ["--servers", servers])
    assert result.exit_code == 2


def test_config_pairs() -> None:
    assert config_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(click.BadParameter):
            config_pairs(bad)


def test_partition_numbers() -> None:
    assert partition_numbers("5, 0-2,1") == [0, 1, 2, 5]
    for bad in ("", "x", "-1", "3-1", "1-", "0-99999999"):
        with pytest.raises(click.BadParameter):
            partition_numbers(bad)


@given(st.integers(0, 253402300799999))
def test_times_are_read_back_as_written(moment_ms: int) -> None:
    assert timestamp_ms(iso_time(moment_ms)) == moment_ms


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert iso_time(2**63 - 1) == str(2**63 - 1)
    assert iso_time(-1) == "1969-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("start", EARLIEST),
        ("latest", LATEST),
        ("end", LATEST),
        ("17", Position(Anchor.OFFSET, 17)),
        ("+3", Position(Anchor.BEGINNING, 3)),
        ("-10", Position(Anchor.END, 10)),
        ("@1357034400000", Position(Anchor.TIME, 1357034400000)),
        ("@1357034400", Position(Anchor.TIME, 1357034400000)),
        ("@0", Position(Anchor.TIME, 0)),
        ("@13570344000", Position(Anchor.TIME, 13570344000)),
        ("@-1h", Position(Anchor.TIME, NOW_MS - 3_600_000)),
        ("@-1h30m", Position(Anchor.TIME, NOW_MS - 5_400_000)),
        ("@-250ms", Position(Anchor.TIME, NOW_MS - 250)),
        ("@-2w1d", Position(Anchor.TIME, NOW_MS - 15 * 86_400_000)),
        ("@-999999999w", Position(Anchor.TIME, 0)),
        ("@2013-01-01T10:00:00Z", Position(Anchor.TIME, 1357034400000)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position
    assert str(position)


@pytest.mark.parametrize(
    "text", ["", "first", "1.5", "--1", "@", "@noon", "@-1x", "@+1h", "@-h", "1" * 30]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"position"):
        parse_position(text, NOW_MS)
