"""A run of `raftlog bench`, with its topic, groups and report."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import click
from raftlog_client import Admin, RaftlogClientError, ServerError

from raftlog.cli.common import output
from raftlog.cli.common.output import ProgressBar
from raftlog.cli.common.session import run
from raftlog.record.errors import UNKNOWN_GROUP
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import Progress

GROUP_DELETE_TRIES: Final = 20
GROUP_DELETE_PAUSE_S: Final = 0.25
_LATENCY_COLUMNS: Final = (
    *("latency in ms", "avg", "p50", "p75", "p95", "p99", "p99.9", "p99.99", "max", "samples"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """One figure, with its name in JSON, and its label and unit for people."""

    name: str
    label: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a run, as single values and distributions of latencies."""

    parameters: dict[str, object]
    """Parameters in OpenMessaging's words where it has them."""
    fields: list[Field]
    samples: dict[str, list[float]]
    """Latencies in seconds by OpenMessaging's prefix, such as `publishLatency`."""

    def show(self, workload: str, output_format: str) -> None:
        """Write it to stdout."""
        found = {
            prefix: Latencies.from_seconds(each) for prefix, each in self.samples.items() if each
        }
        if output_format == "json":
            document: dict[str, object] = {
                "workload": workload,
                "driver": f"raftlog {version('raftlog')}",
                **self.parameters,
                **{field.name: field.value for field in self.fields},
            }
            for prefix, latencies in found.items():
                document |= latencies.as_fields(prefix)
            output.write_json(document)
            return
        given = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        click.echo(f"{workload}: {given}")
        if self.fields:
            rows = [(field.label, _number(field.value), field.unit) for field in self.fields]
            output.write_table(("figure", "value", "unit"), rows)
        if found:
            click.echo()
            output.write_table(
                _LATENCY_COLUMNS,
                [
                    (
                        _words(prefix),
                        *(
                            round(value, 2)
                            for value in (each.avg, *each.percentiles.values(), each.max)
                        ),
                        each.count,
                    )
                    for prefix, each in found.items()
                ],
            )


class Used:
    """The cluster and topic of a run, and the groups that it makes."""

    def __init__(self, servers: str, topic: str, partitions: int, *, is_own: bool) -> None:
        self.servers = servers
        self.topic = topic
        self.partitions = partitions
        self.is_own = is_own
        """Whether the run made the topic."""
        self.groups: list[str] = []
        self._token = secrets.token_hex(4)

    def group(self, name: str) -> str:
        """A name for a new group, which is deleted after the run."""
        group = f"raftlog-bench-{self._token}-{name}"
        self.groups.append(group)
        return group


Measurement = Callable[[Used, Progress], Coroutine[Any, Any, Report]]


def measure_on(
    workload: str,
    measure: Measurement,
    *,
    servers: str,
    topic: str | None,
    partitions: int,
    replicas: int | None,
) -> Report:
    """Run a workload on the given topic or a new topic, with a progress bar.

    What the run makes is deleted at its end, also after Ctrl-C.
    """

    async def go() -> Report:
        async with Admin(bootstrap_servers=servers) as admin:
            if topic is None:
                name = f"raftlog-bench-{secrets.token_hex(4)}"
                await admin.create_topic(name, partitions=partitions, replication_factor=replicas)
                output.message(f"created topic {name}: {output.counted(partitions, 'partition')}")
                used = Used(servers, name, partitions, is_own=True)
            else:
                found = (await admin.describe_topic(topic)).partitions
                used = Used(servers, topic, len(found), is_own=False)
            try:
                with ProgressBar(workload, total=1.0) as bar:
                    return await measure(used, bar.update)
            finally:
                await _finish(asyncio.ensure_future(_clean_up(admin, used)))

    return run(servers, go())


async def _finish(task: asyncio.Task[None]) -> None:
    """Await a task to its end, also when the awaiting task is cancelled."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


async def _clean_up(admin: Admin, used: Used) -> None:
    for group in used.groups:
        try:
            await _delete_group(admin, group)
        except RaftlogClientError as error:
            output.message(f"raftlog: group {group} is left: {error}")
    if used.groups:
        output.message(f"deleted {output.counted(len(used.groups), 'group')}")
    if used.is_own:
        try:
            await admin.delete_topic(used.topic)
        except RaftlogClientError as error:
            output.message(f"raftlog: topic {used.topic} is left: {error}")
        else:
            output.message(f"deleted topic {used.topic}")


async def _delete_group(admin: Admin, group: str) -> None:
    """Delete a group, if it was made. A member that was cut off ends with its session."""
    for attempt in range(GROUP_DELETE_TRIES):
        try:
            await admin.delete_group(group)
        except ServerError as error:
            if error.entry is UNKNOWN_GROUP:
                return
            if attempt + 1 == GROUP_DELETE_TRIES:
                raise
            await asyncio.sleep(GROUP_DELETE_PAUSE_S)
        else:
            return


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 2
    return f"{value:,.{digits}f}"


def _words(prefix: str) -> str:
    """`publishDelayLatency` → `publish delay`."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in prefix)
    return spaced.removesuffix(" latency")
