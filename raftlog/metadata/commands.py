"""Commands: everything that can change the metadata, as typed values and as bytes in the log.

A command is one JSON object. `type` names it; `v` is the lowest command version that a node must
know to apply it. JSON, because the log is read by people in the worst of moments, and because its
size does not matter: a few hundred bytes, few a second; 150 bytes for each partition that moves.

Every node must come to the same image, so the rules of evolution are strict:

- A type, or a version, that this node does not know is never skipped or refused: it would hold
  another image than its peers, and act on it. `decode_command` raises `MetadataVersionError`, which
  ends the node until it is upgraded.
- Unknown *fields* of a known version are ignored. They are notes (who asked, why): whoever adds a
  field that changes what a command does must raise its version.
- The active controller sends a new version only once every registered broker has announced it
  (`RegisterBroker.command_version`), so that in an upgrade done in order nothing ever stops.

Each command may be proposed again after an unknown outcome: the ids and expected values in it make
the repeat harmless, so that no table of request ids is needed.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, get_args

import msgspec

from raftlog.record.errors import INTERNAL, LogError
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)

COMMAND_VERSION: Final = 2
"""The newest command version that this node applies."""
PRODUCER_ID_BLOCK: Final = 1_000
"""Producer ids that a broker is given at once."""
PARTITION_CHANGES_MAX: Final = 1_000
"""Partitions that one ChangePartitions may change: about 150 kB of log, 10 ms to apply."""

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
_Value: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Assignments: TypeAlias = tuple[tuple[BrokerId, ...], ...]
"""For each new partition, in order, the brokers that replicate it: the preferred leader first."""


class MetadataVersionError(LogError):
    """Metadata written by a newer raftlog: this node must stop rather than guess what it means."""

    def __init__(self, message: str) -> None:
        super().__init__(INTERNAL, message)


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    v: _Count = 1


class ClusterCreated(_Command, frozen=True, tag="cluster_created"):
    """The first command of a cluster. Once it is applied the cluster's id never changes."""

    cluster_id: _Text
    created_ms: int


class RegisterBroker(_Command, frozen=True, tag="register_broker"):
    """A broker has started. It gets a new broker epoch, and every partition it leads a new epoch.

    It is fenced until the controller has heard from it: a start is not yet a sign of service.
    `incarnation` is drawn at the start and makes a repeated command harmless. `directory_id`
    is the data directory's identity: a broker whose disk was wiped has another one, and is refused.
    """

    broker_id: Annotated[BrokerId, msgspec.Meta(ge=1)]
    directory_id: _Text
    incarnation: _Text
    host: _Text
    port: _Port
    software_version: _Text
    rack: _Text | None = None
    command_version: _Count = COMMAND_VERSION


class _BrokerCommand(_Command, frozen=True):
    """About one start of one broker: refused if it has been started again since."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class UnregisterBroker(_BrokerCommand, frozen=True, tag="unregister_broker"):
    """Forget a broker that is gone for good: it must be fenced, and hold no replica.

    Its id may then be taken by a node with another data directory.
    """


class FenceBroker(_BrokerCommand, frozen=True, tag="fence_broker"):
    """The broker gives no sign of life: from now on it is not elected, nor let into any ISR.

    What it leads and where it is in sync changes by the ChangePartitions that follow.
    """


class UnfenceBroker(_BrokerCommand, frozen=True, tag="unfence_broker"):
    """The broker is in touch with the controller: it may lead, and enter ISRs."""


class SetControlledShutdown(_BrokerCommand, frozen=True, tag="set_controlled_shutdown"):
    """The broker is about to stop: it is given nothing new until its next start."""


class AlterBroker(_Command, frozen=True, kw_only=True, tag="alter_broker"):
    """An operator's wishes about a broker, whatever becomes of its process; None: as they are.

    Partitions are touched by the ChangePartitions that follow.
    """

    v: _Count = 2
    broker_id: BrokerId
    maintenance: bool | None = None
    decommissioning: bool | None = None


class CreateTopic(_Command, frozen=True, tag="create_topic"):
    """Create a topic under a fresh id. Names and configs were validated by whoever decided it."""

    topic_id: TopicId
    name: str
    configs: dict[str, str]
    assignments: Assignments


class DeleteTopic(_Command, frozen=True, tag="delete_topic"):
    """Delete the topic of this id; one created since under the same name is not meant."""

    topic_id: TopicId


class AddPartitions(_Command, frozen=True, tag="add_partitions"):
    """Add partitions, if the topic still has `partition_count` of them."""

    topic_id: TopicId
    partition_count: _Count
    assignments: Assignments


class AlterTopicConfigs(_Command, frozen=True, tag="alter_topic_configs"):
    """Set the configs of `values` and return those of `removals` to their defaults."""

    topic_id: TopicId
    values: dict[str, str]
    removals: tuple[str, ...] = ()


class AllocateProducerIds(_Command, frozen=True, tag="allocate_producer_ids"):
    """Give a block of producer ids to a broker, if this is still its present incarnation."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    count: _Count = PRODUCER_ID_BLOCK


class AlterIsr(_BrokerCommand, frozen=True, tag="alter_isr"):
    """A partition's leader (`broker_id`) proposes who is in sync from now on (KIP-497).

    Refused unless it is the leader, in these epochs, and every member is unfenced and of the
    incarnation that the leader has seen in sync (KIP-903). Members that leave an ISR which falls
    below min.insync.replicas stay eligible to lead (KIP-966): nothing is committed without them.
    """

    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    min_isr_default: _Count
    """min.insync.replicas, where neither the topic nor the cluster sets it: see configs.py."""


class PartitionChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one partition, if it is still of this epoch. None leaves a field as it is.

    The ELR is never given: applying works it out from who leaves the ISR, and from the
    min.insync.replicas of that moment, of which the proposer may know an older value.
    """

    topic_id: TopicId
    partition: PartitionId
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    """NO_LEADER_ID for none."""
    replicas: tuple[BrokerId, ...] | None = None
    adding: tuple[BrokerId, ...] | None = None
    removing: tuple[BrokerId, ...] | None = None
    not_eligible: tuple[BrokerId, ...] = ()
    """Members that must not stay in the ELR, because they may have lost records. A new leader
    epoch begins, so that nothing they acknowledged before counts any more."""
    unclean: bool = False
    """Whether a replica may enter the ISR that is in neither ISR nor ELR: loses records."""
    min_isr_default: _Count = 1
    """As in AlterIsr. Too low a value is safe: it leaves fewer brokers eligible."""


class ChangePartitions(_Command, frozen=True, tag="change_partitions"):
    """The active controller changes partitions.

    Each change stands alone: the result names those that were stale, and they changed nothing.
    """

    changes: Annotated[
        tuple[PartitionChange, ...], msgspec.Meta(min_length=1, max_length=PARTITION_CHANGES_MAX)
    ]


class AlterClusterSettings(_Command, frozen=True, tag="alter_cluster_settings"):
    """Set topic configs for all topics that do not set them; return `removals` to the default.

    Names and values were validated by whoever decided it.
    """

    values: dict[_Text, _Value]
    removals: tuple[_Text, ...] = ()


Command: TypeAlias = (
    ClusterCreated
    | RegisterBroker
    | UnregisterBroker
    | FenceBroker
    | UnfenceBroker
    | SetControlledShutdown
    | AlterBroker
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | AlterTopicConfigs
    | AllocateProducerIds
    | AlterIsr
    | ChangePartitions
    | AlterClusterSettings
)


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    v: _Count


_ENCODER = msgspec.json.Encoder(order="deterministic")
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_COMMAND: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
COMMAND_TYPES: Final[frozenset[str]] = frozenset(
    str(kind.__struct_config__.tag) for kind in get_args(Command)
)


def encode_command(command: Command) -> bytes:
    """The command's bytes for the log. Equal commands have equal bytes.

    What is in the log is applied by every node at every start, so a command that could not be
    decoded would stop them all for good: it is decoded here once, before it can get there.
    Raises msgspec.ValidationError if the command's values are not of their types.
    """
    encoded = _ENCODER.encode(command)
    _COMMAND.decode(encoded)
    return encoded


def decode_command(encoded: bytes) -> Command:
    """The command of these bytes. Raises MetadataVersionError for one that is not understood."""
    try:
        envelope = _ENVELOPE.decode(encoded)
        if envelope.type not in COMMAND_TYPES or envelope.v > COMMAND_VERSION:
            raise MetadataVersionError(
                f"The metadata log holds a command {envelope.type!r} of version {envelope.v}, but "
                f"this raftlog knows commands up to version {COMMAND_VERSION}: upgrade this node."
            )
        return _COMMAND.decode(encoded)
    except msgspec.MsgspecError as error:
        raise MetadataVersionError(
            f"The metadata log holds a command that this raftlog cannot read ({error}): "
            "upgrade this node."
        ) from error
