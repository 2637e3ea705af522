"""What operators are told to do, where several layers have to say the same."""

from __future__ import annotations


def when_directory_is_lost(node_id: int) -> str:
    """How a node comes back under its id once its data directory is lost. Whole sentences."""
    return (
        f"If that is lost: take the node's vote, if it had one (`raftlog quorum remove-voter "
        f"{node_id}`), then have the cluster forget it (`raftlog cluster remove-node {node_id}`), "
        "and start it with an empty data directory and --join."
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 topic`, `2 topics`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
