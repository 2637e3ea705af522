"""The `raftlog cluster` group: a table of its subcommands."""

from raftlog.cli.lazy import Lazy, LazyGroup

_INFO = "raftlog.cli.cluster_info"
_LOCAL = "raftlog.cli.cluster_local"
_MOVES = "raftlog.cli.cluster_moves"

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
        "decommission": Lazy(_MOVES, "decommission", "Move all that a node holds elsewhere."),
        "remove-node": Lazy(_INFO, "remove_node", "Forget a node that is gone for good."),
    },
    help="Show a cluster, run one on this machine, change who does what in it.",
)
