"""REST consumer instances as a replay of their records makes them, and their soft state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from raftlog.coordinator.groups.assignors import Pair
from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.records import (
    ConsumerInstanceKey,
    ConsumerInstancePositionKey,
    ConsumerInstancePositionValue,
    ConsumerInstanceValue,
)

InstanceId: TypeAlias = tuple[str, str]
"""Group and name."""


@dataclass(slots=True, eq=False)
class Instance:
    """One instance, with its record and the soft state of its reads."""

    group: str
    name: str
    value: ConsumerInstanceValue
    positions: dict[Pair, int] = field(default_factory=dict)
    """Next offsets to read, where a read or a seek has set an offset."""
    followed: dict[Pair, int] = field(default_factory=dict)
    """Positions at the start of the newest read, which auto commit covers."""
    turns: dict[Pair, None] = field(default_factory=dict)
    """Partitions in the order of the next read."""
    committed_ms: int = 0
    """Monotonic time of the last auto commit."""

    @property
    def is_subscribed(self) -> bool:
        """Whether the instance is a member of its group."""
        value = self.value
        return bool(value.subscribed_topic_names) or value.subscribed_topic_regex is not None

    @property
    def commits(self) -> bool:
        """Whether auto commit is on."""
        return self.value.auto_commit_interval_ms > 0


class InstanceTable:
    """The instances of one shard."""

    def __init__(self) -> None:
        self.by_id: dict[InstanceId, Instance] = {}
        self.members: dict[str, dict[str, Instance]] = {}
        """Instances of each group, by the id of their present or possible member."""
        self._starts: dict[InstanceId, dict[Pair, int]] = {}
        """Apart: a compacted log may have them before the instance itself."""

    def starts(self, instance: Instance) -> Mapping[Pair, int]:
        """The instance's starts that no commit shows."""
        return self._starts.get((instance.group, instance.name), {})

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of an instance. Tombstones of unknown keys change nothing."""
        key, value = record
        match key, value:
            case ConsumerInstanceKey(), ConsumerInstanceValue():
                self._replay_instance(key, value)
            case ConsumerInstanceKey(), None:
                self._replay_end(key)
            case ConsumerInstancePositionKey(), ConsumerInstancePositionValue():
                starts = self._starts.setdefault((key.group, key.instance), {})
                starts[key.topic_id, key.partition] = value.offset
            case ConsumerInstancePositionKey(), None:
                starts = self._starts.get((key.group, key.instance), {})
                starts.pop((key.topic_id, key.partition), None)
                if not starts:
                    self._starts.pop((key.group, key.instance), None)
            case _:
                raise AssertionError(f"not a record of a consumer instance: {record}")

    def _replay_instance(self, key: ConsumerInstanceKey, value: ConsumerInstanceValue) -> None:
        instance = self.by_id.get((key.group, key.instance))
        if instance is not None and instance.value.member_id != value.member_id:
            # Compaction has removed the end of an earlier instance of that name.
            self._replay_end(key)
            instance = None
        if instance is None:
            instance = Instance(key.group, key.instance, value)
            self.by_id[key.group, key.instance] = instance
            self.members.setdefault(key.group, {})[value.member_id] = instance
        instance.value = value

    def _replay_end(self, key: ConsumerInstanceKey) -> None:
        instance = self.by_id.pop((key.group, key.instance), None)
        if instance is None:
            return
        members = self.members[key.group]
        del members[instance.value.member_id]
        if not members:
            del self.members[key.group]
