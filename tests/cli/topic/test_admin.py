import json
import socket
from typing import cast
from uuid import uuid4

import pytest
from click.testing import CliRunner
from raftlog_client import Admin, PartitionInfo, TopicDescription
from raftlog_client.errors import server_error

from raftlog.api.cluster import PartitionStatus
from raftlog.cli.main import cli
from raftlog.cli.topic import admin as topic_admin
from raftlog.record.errors import NO_CONTROLLER
from tests.cli.conftest import Run


def describe(run: Run, topic: str) -> dict[str, object]:
    document = json.loads(run("topic", "describe", topic, "--format", "json").stdout)
    assert isinstance(document, dict)
    return document


def setting(run: Run, topic: str, name: str) -> object:
    configs = describe(run, topic)["configs"]
    assert isinstance(configs, list)
    return next(config["value"] for config in configs if config["name"] == name)


def test_create_describe_list_delete(run: Run) -> None:
    name = f"orders-{uuid4().hex}"
    made = run("topic", "create", name, "-p", "2", "-c", "retention.ms=1000", "--format", "json")
    document = json.loads(made.stdout)
    assert [(entry["name"], entry["created"]) for entry in document] == [(name, True)]
    document = describe(run, name)
    assert [p["end_offset"] for p in document["partitions"]] == [0, 0]
    assert setting(run, name, "retention.ms") == "1000"
    listed = json.loads(run("topic", "list", "--format", "json").stdout)
    assert {"name": name, "partitions": 2, "replicas": 1} in listed
    assert json.loads(run("topic", "delete", name, "--format", "json").stdout) == {
        "deleted": [name],
        "failed": [],
    }
    assert "40401" in run("topic", "describe", name, code=3).stderr


def test_text_output_keeps_data_on_stdout_and_messages_on_stderr(run: Run) -> None:
    name = f"text-{uuid4().hex}"
    made = run("topic", "create", name)
    assert made.stdout == ""
    assert made.stderr == f"{name} created: 1 partition\n"
    listed = run("topic", "list")
    assert listed.stdout.splitlines()[0].split() == ["NAME", "PARTITIONS", "REPLICAS"]
    assert [name, "1", "1"] in [line.split() for line in listed.stdout.splitlines()]
    described = run("topic", "describe", name)
    assert "\x1b" not in described.stdout
    assert described.stderr == ""


def test_the_list_of_an_empty_cluster_says_how_to_create_a_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_topics(servers: str, request: object) -> list[TopicDescription]:
        return []

    monkeypatch.setattr(topic_admin, "ask", no_topics)
    listed = CliRunner().invoke(cli, ["topic", "list"])
    assert listed.stdout == ""
    assert listed.stderr == "There are no topics yet; `raftlog topic create NAME` makes one.\n"


def test_existing_topic_is_an_error_unless_asked_for(run: Run, topic: str) -> None:
    assert "40904" in run("topic", "create", topic, code=1).stderr
    again = run("topic", "create", topic, "--if-not-exists", "--format", "json")
    assert [entry["created"] for entry in json.loads(again.stdout)] == [False]


def test_missing_topic_has_a_code_of_its_own(run: Run) -> None:
    error = run("topic", "delete", "missing", code=3).stderr
    assert "40401" in error
    assert "raftlog topic list" in error
    assert run("topic", "delete", "missing", "--if-exists").stderr == ""


def test_each_of_several_topics_is_created_and_answered_by_itself(run: Run, topic: str) -> None:
    a, b = f"a-{uuid4().hex}", f"b-{uuid4().hex}"
    made = run("topic", "create", a, topic, b, code=1)
    assert made.stderr.splitlines() == [
        f"{a} created: 1 partition",
        f"raftlog: {topic}: Topic '{topic}' exists already. (40904)",
        f"{b} created: 1 partition",
    ]
    made = run("topic", "create", a, "grün", "--if-not-exists", "--format", "json", code=2)
    known, bad = json.loads(made.stdout)
    assert (known["name"], known["created"]) == (a, False)
    assert (bad["name"], bad["created"], bad["error_code"]) == ("grün", False, 42205)
    assert "'grün'" in bad["message"]


def test_each_of_several_topics_is_deleted_and_answered_by_itself(run: Run) -> None:
    names = [f"{letter}-{uuid4().hex}" for letter in "abcd"]
    run("topic", "create", *names)
    a, b, c, d = names
    gone = run("topic", "delete", a, "nope", b, code=3)
    assert gone.stderr.splitlines() == [
        f"{a} deleted",
        "raftlog: nope: Topic 'nope' not found. (40401)",
        f"{b} deleted",
    ]
    gone = run("topic", "delete", c, a, d, "--format", "json", code=3)
    assert json.loads(gone.stdout) == {
        "deleted": [c, d],
        "failed": [
            {
                "name": a,
                "error_code": 40401,
                "message": f"Topic '{a}' not found. (40401)",
            }
        ],
    }
    listed = {row["name"] for row in json.loads(run("topic", "list", "--format", "json").stdout)}
    assert not listed & set(names)


def test_after_an_error_of_the_cluster_the_other_topics_are_not_tried(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def delete_topic(_: Admin, name: str) -> None:
        tried.append(name)
        raise server_error(NO_CONTROLLER.code)

    monkeypatch.setattr(Admin, "delete_topic", delete_topic)
    failed = run("topic", "delete", "a", "b", code=4)
    assert tried == ["a"]
    assert failed.stderr.splitlines()[1] == "raftlog: b: not tried"


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "../evil"),
        ("create", "t", "-p", "0"),
        ("create", "t", "-c", "no.such=1"),
        ("create", "t", "-c", "retention.ms=soon"),
        ("create", "t", "-c", "retention.ms"),
        ("create",),
        ("alter-config", "t"),
        ("add-partitions", "t", "-n", "-1"),
        ("trim-prefix", "t", "-o", "nowhere", "--no-confirm"),
        ("trim-prefix", "t", "-o", "1", "-p", "x", "--no-confirm"),
        ("trim-prefix", "t", "-o", "1"),
    ],
)
def test_wrong_usage_has_code_2_and_says_why(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("topic", *arguments, code=2)
    assert result.stderr
    assert result.stdout == ""


def test_settings_can_be_set_and_taken_back(run: Run, topic: str) -> None:
    before = setting(run, topic, "retention.ms")
    run("topic", "alter-config", topic, "--set", "retention.ms=5000", "-s", "segment.ms=60000")
    assert setting(run, topic, "retention.ms") == "5000"
    run("topic", "alter-config", topic, "--delete", "retention.ms")
    assert setting(run, topic, "retention.ms") == before
    assert setting(run, topic, "segment.ms") == "60000"


def test_a_setting_without_effect_is_marked(run: Run, topic: str) -> None:
    run("topic", "alter-config", topic, "--set", "segment.jitter.ms=5")
    (config,) = (
        one for one in describe(run, topic)["configs"] if one["name"] == "segment.jitter.ms"
    )
    assert config["value"] == "5"
    assert "does not act on it" in config["note"]
    lines = run("topic", "describe", topic).stdout.splitlines()
    assert any("segment.jitter.ms" in line and "no effect" in line for line in lines)


def test_partitions_can_be_added(run: Run, topic: str) -> None:
    added = run("topic", "add-partitions", topic, "-n", "2", "--format", "json")
    assert json.loads(added.stdout) == {"name": topic, "partitions": 5}
    assert len(describe(run, topic)["partitions"]) == 5


def test_prefix_is_trimmed_only_where_asked(run: Run, topic: str, tmp_path: object) -> None:
    path = f"{tmp_path}/lines"
    with open(path, "w") as file:  # noqa: PTH123 - the path is text here
        file.write("a\nb\nc\n")
    for partition in "01":
        run("topic", "produce", topic, path, "--partition", partition)
    trimmed = run(
        "topic", "trim-prefix", topic, "-o", "-1", "-p", "0", "--no-confirm", "--format", "json"
    )
    assert json.loads(trimmed.stdout)["partitions"] == [{"partition": 0, "beginning_offset": 2}]
    left = run("topic", "consume", topic, "--format", r"%p%v ").stdout.split()
    assert sorted(left) == ["0c", "1a", "1b", "1c"]


def test_cluster_info_and_health(run: Run) -> None:
    info = json.loads(run("cluster", "info", "--format", "json").stdout)
    assert [broker["broker_id"] for broker in info["brokers"]] == [1]
    assert info["cluster_id"] in run("cluster", "info").stdout
    health = json.loads(run("cluster", "health", "--format", "json").stdout)
    assert health == {
        "healthy": True, "quorum": [], "fenced": [], "unwritable": [], "not_ready": {},
        "opening": {}, "clocks": {}, "leaderless": [], "below_min_isr": [], "under_replicated": [],
        "warnings": [],
    }  # fmt: skip
    assert run("cluster", "health").stdout == "healthy\n"


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("cluster", "health"), ("topic", "consume", "t")]
)
def test_no_node_has_a_code_of_its_own_and_says_how_to_start_one(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.cli.common.session.CONNECT_PATIENCE_S", 0.2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"
        result = CliRunner().invoke(cli, [*command, "--servers", servers])
    assert result.exit_code == 4
    assert f"no raftlog node answers at {servers}: Connection refused\n" in result.stderr
    assert "raftlog serve" in result.stderr


def test_a_large_topic_is_led_when_its_creation_returns(run: Run) -> None:
    name = f"large-{uuid4().hex}"
    made = run("topic", "create", name, "-p", "600")
    assert made.stderr.splitlines()[-1] == f"{name} created: 600 partitions"
    assert [p["end_offset"] for p in describe(run, name)["partitions"]] == [0] * 600
    run("topic", "delete", name)


class SlowLeaders:
    """Admin of a cluster that opens some partitions with each answer."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    async def describe_replicas(self, _topic: str) -> dict[int, PartitionStatus]:
        led = self.steps.pop(0)
        return {
            number: PartitionStatus(partition=number, high_watermark=0 if number < led else None)
            for number in range(1_000)
        }


async def test_the_creation_of_a_large_topic_shows_its_progress_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(topic_admin.time, "monotonic", lambda: now)
    monkeypatch.setattr(topic_admin.asyncio, "sleep", sleep)
    topic = TopicDescription("t", "0" * 32, (PartitionInfo("t", 0, 1, 0, (1,), (1,)),) * 1_000)
    await topic_admin._wait_led(cast(Admin, SlowLeaders([10, 500, 1_000])), topic)
    assert capsys.readouterr().err.splitlines() == [
        "t: creating: 10 of 1000 partitions have a leader",
        "t: creating: 500 of 1000 partitions have a leader",
    ]
    await topic_admin._wait_led(cast(Admin, SlowLeaders([10] * 1_000)), topic)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= topic_admin.LEADERS_PATIENCE_S + 2
    assert lines[-1].endswith("`raftlog cluster health` tells when all have")
