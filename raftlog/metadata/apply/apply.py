"""Applies commands to the image, and is the only code that changes metadata.

Two rules hold here and in the modules for each kind of command. First every check, then every
change, so a refused command leaves the image unchanged. A check may use only facts fixed by the
command's version, which are the image and its invariants. Rules that may differ between releases
(bounds, legal configs, defaults) are checked by the controller before the proposal. Otherwise nodes
of two releases would come to different images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from raftlog.metadata.apply.cluster import (
    BROKERS_MAX,
    ClusterSettings,
    ProducerIdBlock,
    allocate_producer_ids,
    alter_broker,
    alter_cluster_settings,
    create_cluster,
    fence_broker,
    register_broker,
    replace_directory,
    set_controlled_shutdown,
    unfence_broker,
    unregister_broker,
)
from raftlog.metadata.apply.partitions import PartitionsChanged, alter_isr, change_partitions
from raftlog.metadata.apply.rules import Refusal, RefusedError
from raftlog.metadata.apply.topics import (
    add_partitions,
    alter_configs,
    create_topic,
    delete_topic,
)
from raftlog.metadata.commands import (
    AddPartitions,
    AllocateProducerIds,
    AlterBroker,
    AlterClusterSettings,
    AlterIsr,
    AlterTopicConfigs,
    ChangePartitions,
    ClusterCreated,
    Command,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta
from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import LogError

__all__ = ["BROKERS_MAX", "ApplyResult", "ApplyValue", "apply"]

ApplyValue: TypeAlias = (
    TopicImage
    | BrokerImage
    | PartitionImage
    | PartitionsChanged
    | ClusterSettings
    | ProducerIdBlock
    | str
    | None
)
_Change: TypeAlias = tuple[ApplyValue, MetadataDelta]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of the command at `index`, the same on every node.

    `value` is the topic, broker or partition after the change (before a deletion), the outcome of
    each partition change, all cluster settings, the allocated producer ids, or the cluster's id.
    With a `refusal` nothing has changed.
    """

    index: int
    value: ApplyValue = None
    delta: MetadataDelta = NO_CHANGE
    refusal: Refusal | None = None

    def check(self) -> None:
        """Raise LogError if the command was refused."""
        if self.refusal is not None:
            raise LogError(self.refusal.entry, self.refusal.message)

    def topic(self) -> TopicImage:
        """The value of a topic command. Raises LogError after a refusal."""
        self.check()
        assert isinstance(self.value, TopicImage)
        return self.value

    def broker(self) -> BrokerImage:
        """The value of a broker command. Raises LogError after a refusal."""
        self.check()
        assert isinstance(self.value, BrokerImage)
        return self.value

    def partition(self) -> PartitionImage:
        """The value of AlterIsr. Raises LogError after a refusal."""
        self.check()
        assert isinstance(self.value, PartitionImage)
        return self.value

    def partitions(self) -> PartitionsChanged:
        """The value of ChangePartitions, which is never refused as a whole."""
        self.check()
        assert isinstance(self.value, PartitionsChanged)
        return self.value

    def cluster_settings(self) -> Mapping[str, str]:
        """The value of AlterClusterSettings. Raises LogError after a refusal."""
        self.check()
        assert isinstance(self.value, ClusterSettings)
        return self.value.values

    def producer_ids(self) -> ProducerIdBlock:
        """The value of AllocateProducerIds. Raises LogError after a refusal."""
        self.check()
        assert isinstance(self.value, ProducerIdBlock)
        return self.value


def apply(image: MetadataImage, index: int, command: Command) -> ApplyResult:
    """Apply the command at `index` of the log, in place.

    Indexes grow but may leave gaps, since the log also holds entries without a command.
    """
    assert index > image.applied_index, f"index {index} after {image.applied_index}"
    try:
        value, delta = _transition(image, index, command)
    except RefusedError as refused:
        result = ApplyResult(index, refusal=refused.refusal)
    else:
        result = ApplyResult(index, value, delta)
    image.applied_index = index
    return result


def _transition(  # noqa: PLR0912 - one case for each command, each a line
    image: MetadataImage, index: int, command: Command
) -> _Change:
    match command:
        case ClusterCreated():
            change: _Change = create_cluster(image, command), NO_CHANGE
        case RegisterBroker():
            change = register_broker(image, index, command)
        case UnregisterBroker():
            change = unregister_broker(image, command)
        case ReplaceDirectory():
            change = replace_directory(image, command)
        case FenceBroker():
            change = fence_broker(image, command)
        case UnfenceBroker():
            change = unfence_broker(image, command)
        case SetControlledShutdown():
            change = set_controlled_shutdown(image, command)
        case AlterBroker():
            change = alter_broker(image, command)
        case CreateTopic():
            change = create_topic(image, command)
        case DeleteTopic():
            change = delete_topic(image, command)
        case AddPartitions():
            change = add_partitions(image, command)
        case AlterTopicConfigs():
            change = alter_configs(image, command)
        case AllocateProducerIds():
            change = allocate_producer_ids(image, command), NO_CHANGE
        case AlterIsr():
            change = alter_isr(image, command)
        case ChangePartitions():
            change = change_partitions(image, command)
        case AlterClusterSettings():
            change = alter_cluster_settings(image, command)
        case _:
            assert_never(command)
    return change
