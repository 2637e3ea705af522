"""The command tree, with groups that import a subcommand only when it runs.

The tables name modules instead of importing them, because `raftlog --help` and the shell's
completion read the tables every time.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lazy(NamedTuple):
    """Where a command lives, and its line in the group's help."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group with a table of subcommands instead of imports."""

    def __init__(
        self, name: str, *, subcommands: Mapping[str, Lazy], help: str, **settings: object
    ) -> None:
        settings_of_all = {"help_option_names": ["-h", "--help"], "show_default": True}
        super().__init__(name, help=help, context_settings=settings_of_all)
        self._subcommands = subcommands
        assert not settings, settings

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order, the most needed first."""
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The named subcommand, imported now."""
        entry = self._subcommands.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), entry
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand of the first argument.

        An unknown name fails with the likeliest name.
        """
        if args[0] not in self._subcommands and not args[0].startswith("-"):
            likely = self._likely(args[0])
            advice = f" Did you mean {' or '.join(likely)}?" if likely else ""
            ctx.fail(f"There is no command '{args[0]}'.{advice}")
        return super().resolve_command(ctx, args)

    def _likely(self, name: str) -> list[str]:
        """Commands that an unknown name may mean, below a group or of a similar name."""
        below = [
            f"'{group} {name}'"
            for group, entry in self._subcommands.items()
            # Only the tables of this module are searched, as those of others would have to be
            # imported.
            if entry.module == __name__
            and isinstance(found := globals()[entry.attribute], LazyGroup)
            and name in found._subcommands
        ]
        return below or [f"'{close}'" for close in get_close_matches(name, self._subcommands, 1)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing any."""
        rows = [(name, entry.summary) for name, entry in self._subcommands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


_ADMIN = "raftlog.cli.topic.admin"

topic = LazyGroup(
    "topic",
    subcommands={
        "create": Lazy(_ADMIN, "create", "Create topics."),
        "list": Lazy(_ADMIN, "list_topics", "List topics."),
        "describe": Lazy(
            "raftlog.cli.topic.describe", "describe", "Show a topic's partitions and settings."
        ),
        "produce": Lazy(
            "raftlog.cli.topic.produce", "produce", "Write records from stdin or files."
        ),
        "consume": Lazy("raftlog.cli.topic.consume", "consume", "Print records."),
        "alter-config": Lazy(_ADMIN, "alter_config", "Change a topic's settings."),
        "add-partitions": Lazy(_ADMIN, "add_partitions", "Give a topic more partitions."),
        "trim-prefix": Lazy(_ADMIN, "trim_prefix", "Delete the oldest records of a topic."),
        "delete": Lazy(_ADMIN, "delete", "Delete topics with all their records."),
    },
    help="Create, inspect, write and read topics.",
)

_GROUPS = "raftlog.cli.consumer_groups"

group = LazyGroup(
    "group",
    subcommands={
        "list": Lazy(_GROUPS, "list_groups", "List consumer groups."),
        "describe": Lazy(_GROUPS, "describe", "Show a group's offsets, lags and members."),
        "seek": Lazy(_GROUPS, "seek", "Set the committed offsets of a group."),
        "offset-delete": Lazy(_GROUPS, "offset_delete", "Forget committed offsets of topics."),
        "delete": Lazy(_GROUPS, "delete", "Delete a group with its offsets."),
    },
    help="Show consumer groups, their members and lags. Set and delete their offsets.",
)

_TRANSACTIONS = "raftlog.cli.transactions"

txn = LazyGroup(
    "txn",
    subcommands={
        "list": Lazy(
            _TRANSACTIONS, "list_transactions", "List transactions, and what they hold back."
        ),
        "describe": Lazy(_TRANSACTIONS, "describe", "Show a transactional id."),
        "abort": Lazy(_TRANSACTIONS, "abort", "Abort a transaction, and fence its producer."),
    },
    help="Show transactions and the partitions that they hold back. Abort a transaction.",
)

_BENCH = "raftlog.cli.bench.commands"

bench = LazyGroup(
    "bench",
    subcommands={
        "produce": Lazy(_BENCH, "produce", "Write records: throughput and publish latency."),
        "consume": Lazy(_BENCH, "consume", "Read records: throughput, by hand or in a group."),
        "end-to-end": Lazy(_BENCH, "end_to_end", "Latency from producer to consumer, at a rate."),
        "groups": Lazy(_BENCH, "groups", "Time to rebalance a group; rate of offset commits."),
        "transactions": Lazy(_BENCH, "transactions", "Latency and rate of transactions."),
    },
    help="""Measure a cluster with this client, from this machine.

    The topics and groups that a command makes are deleted when it ends. Latencies are in
    milliseconds; the fields of --format json have OpenMessaging's names.
    """,
)

_INFO = "raftlog.cli.cluster.info"
_LOCAL = "raftlog.cli.cluster.local"
_MOVES = "raftlog.cli.cluster.moves"

cluster = LazyGroup(
    "cluster",
    subcommands={
        "info": Lazy(_INFO, "info", "Show the cluster's id, controller and nodes."),
        "health": Lazy(_INFO, "health", "Say whether all is well; the exit code too."),
        "up": Lazy(_LOCAL, "up", "Run a cluster of several nodes on this machine."),
        "down": Lazy(_LOCAL, "down", "Stop a cluster that `up` started."),
        "status": Lazy(_LOCAL, "status", "Show the processes of a cluster that `up` started."),
        "add-node": Lazy(_LOCAL, "add_node", "Add a node to a cluster that `up` started."),
        "replace-node": Lazy(_LOCAL, "replace_node", "Replace a node of it whose data is lost."),
        "stop-node": Lazy(_LOCAL, "stop_node", "Stop one node of it."),
        "start-node": Lazy(_LOCAL, "start_node", "Start a node of it that was stopped."),
        "transfer-leadership": Lazy(_MOVES, "transfer_leadership", "Move partitions' leaders."),
        "reassign": Lazy(_MOVES, "reassign", "Move replicas of partitions; show what moves."),
        "maintenance": Lazy(_MOVES, "maintenance", "Have a node lead nothing, for a while."),
        "decommission": Lazy(_MOVES, "decommission", "Move all replicas of a node elsewhere."),
        "config": Lazy("raftlog.cli.groups", "cluster_config", "Show and change its settings."),
        "remove-node": Lazy(_INFO, "remove_node", "Forget a node that is gone for good."),
    },
    help="Show or run a cluster, change its leaders, replicas and settings.",
)

_CONFIG = "raftlog.cli.cluster.config"

cluster_config = LazyGroup(
    "config",
    subcommands={
        "list": Lazy(_CONFIG, "list_configs", "List the settings of all brokers."),
        "get": Lazy(_CONFIG, "get_config", "Print the value of one setting."),
        "set": Lazy(_CONFIG, "set_configs", "Change settings, without a restart."),
    },
    help="""Show and change settings of the whole cluster.

    Broker settings (session timeout, replica lag, leader rebalance delay, scrub rate, disk reserve)
    and topic settings for topics that do not set them. A change takes effect on all nodes without
    a restart.
    """,
)

_FLEET = "raftlog.cli.fleet"

fleet = LazyGroup(
    "fleet",
    subcommands={
        "plan": Lazy(_FLEET, "plan", "Show the steps from the present state to the file."),
        "apply": Lazy(_FLEET, "apply", "Make the clusters as written, one node at a time."),
        "status": Lazy(_FLEET, "status", "Show clusters and nodes, also by exit code."),
    },
    help="""Keep clusters, on this machine or on others by ssh, as a file describes them.

    The file is TOML. docs/fleet.md describes its keys. There is no daemon. `apply` makes the
    clusters match the file, and a second run is a no-op.
    """,
)
