"""`raftlog topic describe` shows replicas, leaders, lag, offsets and settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec
from raftlog_client import Admin, RaftlogClientError, TopicNotFoundError, TopicPartition

from raftlog.cli.cluster.info import clock_warnings, wrong_clocks
from raftlog.cli.common import output
from raftlog.cli.common.options import format_option, servers_option
from raftlog.cli.common.session import run
from raftlog.cli.topic.admin import topic_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftlog.api.cluster import PartitionStatus

OFFSETS_PATIENCE_MS = 2_000
"""Time limit for the offsets of partitions without a leader."""
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": "topic",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "cluster",
    "STATIC_BROKER_CONFIG": "node",
    "DEFAULT_CONFIG": "default",
}
"""Sources of a config, in plain words."""


@click.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "-a", "--all-configs", is_flag=True, help="Also show settings left at their defaults."
)
@servers_option
@format_option
def describe(name: str, all_configs: bool, servers: str, output_format: str) -> None:
    """Show a topic's settings, and its partitions with leader, replicas and offsets.

    ELR has replicas that are not in sync, but may lead, because they have all that was committed.
    LAG is how many records each follower is behind its leader's end, by node. "-" is not known.
    """

    async def look() -> dict[str, Any]:
        async with Admin(bootstrap_servers=servers) as admin:
            topic = await admin.describe_topic(name)
            configs = await admin.describe_configs(name)
            # A topic is described the more urgently with a node missing.
            offsets = await admin.offsets([name], at_hand_after_ms=OFFSETS_PATIENCE_MS)
            states, nodes = await asyncio.gather(_states(admin, name), admin.describe_each_node())
        document = topic_document(topic)
        for partition in document["partitions"]:
            number = partition["partition"]
            known = offsets.get(TopicPartition(name, number))
            partition["beginning_offset"] = known and known.beginning_offset
            partition["end_offset"] = known and known.end_offset
            _add_state(partition, states.get(number))
        held = {node_id for partition in topic.partitions for node_id in partition.replicas}
        document["replicas"] = sum(len(partition.replicas) for partition in topic.partitions)
        document["replicas_open"] = _open_count(states) if states else None
        document["clocks"] = wrong_clocks(
            {node_id: node for node_id, node in nodes.items() if node_id in held}
        )
        document["configs"] = [
            msgspec.to_builtins(config)
            for config in sorted(configs.values(), key=lambda config: config.name)
            if all_configs or output_format == "json" or not config.is_default
        ]
        return document

    document = run(servers, look())
    if output_format == "json":
        output.write_json(document)
        return
    click.echo(f"{document['name']}  (id {document['topic_id']})")
    for line in _remarks(document):
        click.echo(f"  {line}")
    output.write_table(
        ("partition", "leader", "epoch", "replicas", "in sync", "elr", "lag", "beginning", "end"),
        [
            (
                partition["partition"],
                partition["leader"],
                partition["leader_epoch"],
                _numbers(partition["replicas"]),
                _numbers(partition["isr"]),
                _numbers(partition["elr"] or ()) or None,
                _lags(partition),
                partition["beginning_offset"],
                partition["end_offset"],
            )
            for partition in document["partitions"]
        ],
    )
    if document["configs"]:
        click.echo()
        output.write_table(
            ("setting", "value", "source"),
            [(config["name"], config["value"], _source(config)) for config in document["configs"]],
        )


def _source(config: dict[str, Any]) -> str:
    source = SOURCES.get(config["source"], config["source"])
    return f"{source}, no effect" if config["note"] else source


def _remarks(document: dict[str, Any]) -> Iterator[str]:
    """Progress of the topic's creation, and clocks that keep its records longer."""
    replicas, replicas_open = document["replicas"], document["replicas_open"]
    if replicas_open is not None and replicas_open < replicas:
        yield (
            f"{replicas_open:,} of {replicas:,} replicas open: the others are being opened, or out "
            "of reach"
        )
    for warning in clock_warnings(document["clocks"]):
        yield f"warning: {warning}"


def _open_count(states: dict[int, PartitionStatus]) -> int:
    """Replicas that their leaders have heard from, the leaders themselves included."""
    return sum(
        replica.log_end_offset is not None
        for state in states.values()
        for replica in state.replicas
    )


async def _states(admin: Admin, name: str) -> dict[int, PartitionStatus]:
    try:
        return await admin.describe_replicas(name)
    except TopicNotFoundError:
        raise
    except RaftlogClientError as error:
        # Silent leaders are no reason to hide the metadata.
        if not error.retriable:
            raise
        return {}


def _add_state(partition: dict[str, Any], state: PartitionStatus | None) -> None:
    known = {} if state is None else {replica.broker_id: replica for replica in state.replicas}
    partition["elr"] = None if state is None or state.elr is None else list(state.elr)
    partition["followers"] = [
        {
            "node_id": node_id,
            "log_end_offset": known[node_id].log_end_offset if node_id in known else None,
            "lag": known[node_id].lag if node_id in known else None,
        }
        for node_id in partition["replicas"]
        if node_id != partition["leader"]
    ]


def _lags(partition: dict[str, Any]) -> str | None:
    """Lag by follower, as far as known, such as `2:0 3:15`."""
    followers = partition["followers"]
    if all(follower["lag"] is None for follower in followers):
        return None
    return " ".join(
        f"{follower['node_id']}:{'-' if follower['lag'] is None else follower['lag']}"
        for follower in followers
    )


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
