"""Partitions with their in-sync replicas and min.insync.replicas, read by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from raftlog_client import Admin, ConfigEntry, RaftlogClientError, TopicDescription

from raftlog.fleet.safety import PartitionState

CONFIGS_AT_ONCE: Final = 16


async def min_isr_by_topic(admin: Admin, names: Sequence[str]) -> dict[str, int]:
    """min.insync.replicas of topics. Topics without a response are left out."""
    found: dict[str, int] = {}
    for start in range(0, len(names), CONFIGS_AT_ONCE):
        some = names[start : start + CONFIGS_AT_ONCE]
        answers = await asyncio.gather(*map(admin.describe_configs, some), return_exceptions=True)
        for name, answer in zip(some, answers, strict=True):
            match answer:
                case {"min.insync.replicas": ConfigEntry(value=str(value))} if value.isdecimal():
                    found[name] = int(value)
                case RaftlogClientError() | dict():
                    # The topic is deleted by now, or no node responds. The rest of the report
                    # stands.
                    continue
                case BaseException():
                    raise answer
    return found


async def partition_states(
    admin: Admin, topics: Iterable[TopicDescription]
) -> tuple[PartitionState, ...]:
    """Every partition of these topics, with its topic's min.insync.replicas.

    A topic whose setting is not known counts as needing all of its replicas.
    """
    described = list(topics)
    min_isr = await min_isr_by_topic(admin, [topic.name for topic in described])
    return tuple(
        PartitionState(
            topic=info.topic,
            partition=info.partition,
            replicas=info.replicas,
            isr=info.isr,
            min_isr=min_isr.get(info.topic, len(info.replicas)),
        )
        for topic in described
        for info in topic.partitions
    )


def out_of_sync(topics: Iterable[TopicDescription]) -> list[TopicDescription]:
    """The topics with a replica out of sync. No other can be below min.insync.replicas."""
    return [
        topic
        for topic in topics
        if any(len(info.isr) < len(info.replicas) for info in topic.partitions)
    ]
