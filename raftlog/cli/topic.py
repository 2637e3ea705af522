"""The `raftlog topic` group: a table of its subcommands."""

from raftlog.cli.lazy import Lazy, LazyGroup

_ADMIN = "raftlog.cli.topic_admin"

topic = LazyGroup(
    "topic",
    subcommands={
        "create": Lazy(_ADMIN, "create", "Create topics."),
        "list": Lazy(_ADMIN, "list_topics", "List topics."),
        "describe": Lazy(
            "raftlog.cli.topic_describe", "describe", "Show a topic's partitions and settings."
        ),
        "produce": Lazy("raftlog.cli.produce", "produce", "Write records from stdin or files."),
        "consume": Lazy("raftlog.cli.consume", "consume", "Print records."),
        "alter-config": Lazy(_ADMIN, "alter_config", "Change a topic's settings."),
        "add-partitions": Lazy(_ADMIN, "add_partitions", "Give a topic more partitions."),
        "trim-prefix": Lazy(_ADMIN, "trim_prefix", "Delete the oldest records of a topic."),
        "delete": Lazy(_ADMIN, "delete", "Delete topics with all their records."),
    },
    help="Create, inspect, write and read topics.",
)
