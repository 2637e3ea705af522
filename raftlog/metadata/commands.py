"""Commands are changes of the metadata, as typed values and as bytes in the log.

A command is one JSON object. `type` names the command. `v` is the lowest command version with this
effect. It is JSON because people read the log in the worst of moments, and because its size does
not

Every node must come to the same image, so the rules of evolution are strict:

- A node never skips or refuses an unknown type or version. Otherwise the node would hold another
  image than its peers, and act by the image. `decode_command` raises `MetadataVersionError`, which
  ends the node until its upgrade.
- Unknown *fields* of a known version are ignored. Such fields are notes (author, reason). A new
  field that changes the effect of a command must raise its version.
- The active controller sends a new version only once every registered broker has announced support
  (`RegisterBroker.command_version`), so no node stops in an upgrade done in order.

Each command may be proposed again after an unknown outcome. Its ids and expected values make the
repeat harmless, so no table of request ids is needed.
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

COMMAND_VERSION: Final = 5
"""The newest command version applied by this node."""
PRODUCER_ID_BLOCK: Final = 1_000
"""Producer ids allocated to a broker at once."""
PARTITION_CHANGES_MAX: Final = 1_000
"""Partitions changed by one ChangePartitions, about 150 kB of log and 10 ms to apply."""

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
_Value: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Assignments: TypeAlias = tuple[tuple[BrokerId, ...], ...]
"""Brokers of each new partition, in order, the preferred leader first."""


class MetadataVersionError(LogError):
    """Metadata written by a newer raftlog. This node must stop rather than guess the meaning."""

    def __init__(self, message: str) -> None:
        super().__init__(INTERNAL, message)


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    v: _Count = 1


class ClusterCreated(_Command, frozen=True, tag="cluster_created"):
    """The first command of a cluster. Afterwards the cluster's id never changes."""

    cluster_id: _Text
    created_ms: int


KAFKA_ADDRESS_VERSION: Final = 4
"""The version of RegisterBroker in which the Kafka address counts."""


class RegisterBroker(_Command, frozen=True, tag="register_broker"):
    """A broker has started, which gives it and the partitions it leads new epochs.

    The broker is fenced until its first heartbeat, since a start is not yet a sign of service.
    `incarnation` is drawn at the start and makes a repeated command harmless. `directory_id` is the
    data directory's identity. A broker with a wiped disk has another identity, and is refused.

    From version 4 the command carries the address of the broker's Kafka listener, and a repeat for
    the present incarnation changes only that address. Choose the version by
    `liveness.registration_command`.
    """

    broker_id: Annotated[BrokerId, msgspec.Meta(ge=1)]
    directory_id: _Text
    incarnation: _Text
    host: _Text
    port: _Port
    software_version: _Text
    rack: _Text | None = None
    command_version: _Count = COMMAND_VERSION
    kafka_host: _Text | None = None
    """Host where Kafka clients reach the broker, or None without a Kafka listener."""
    kafka_port: _Port | None = None


class _BrokerCommand(_Command, frozen=True):
    """A command about one start of one broker. Refused after a restart."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class UnregisterBroker(_BrokerCommand, frozen=True, tag="unregister_broker"):
    """Forget a broker that is gone for good. Refused unless fenced and without replicas.

    A node with another data directory may then take its id.
    """


class ReplaceDirectory(_BrokerCommand, frozen=True, kw_only=True, tag="replace_directory"):
    """Replace a broker's lost data directory by an empty directory.

    Refused unless the broker is fenced. In-sync sets are left as they are, since the broker stays
    fenced until its next start, which reports the replicas whose files are gone before its first
    heartbeat. From here on the lost directory is refused, should it come back.
    """

    v: _Count = 5
    directory_id: _Text
    """The identity of the new directory."""


class FenceBroker(_BrokerCommand, frozen=True, tag="fence_broker"):
    """The broker's session has expired. It is neither elected nor admitted to any ISR.

    The following ChangePartitions change its leaderships and in-sync sets.
    """


class UnfenceBroker(_BrokerCommand, frozen=True, tag="unfence_broker"):
    """The broker has a live session. It may lead, and enter ISRs."""


class SetControlledShutdown(_BrokerCommand, frozen=True, tag="set_controlled_shutdown"):
    """The broker is about to stop. It gets no new duties until its next start."""


class AlterBroker(_Command, frozen=True, kw_only=True, tag="alter_broker"):
    """An operator's request about a broker, independent of its process.

    None leaves a field unchanged.

    The following ChangePartitions touch the partitions.
    """

    v: _Count = 2
    broker_id: BrokerId
    maintenance: bool | None = None
    decommissioning: bool | None = None


class CreateTopic(_Command, frozen=True, tag="create_topic"):
    """Create a topic under a fresh id. The deciding node has validated names and configs."""

    topic_id: TopicId
    name: str
    configs: dict[str, str]
    assignments: Assignments


class DeleteTopic(_Command, frozen=True, tag="delete_topic"):
    """Delete the topic of this id. A newer topic under the same name is not meant."""

    topic_id: TopicId


class AddPartitions(_Command, frozen=True, tag="add_partitions"):
    """Add partitions. Refused unless the topic still has `partition_count` of them."""

    topic_id: TopicId
    partition_count: _Count
    assignments: Assignments


class AlterTopicConfigs(_Command, frozen=True, tag="alter_topic_configs"):
    """Set the configs of `values` and return those of `removals` to their defaults."""

    topic_id: TopicId
    values: dict[str, str]
    removals: tuple[str, ...] = ()


class AllocateProducerIds(_Command, frozen=True, tag="allocate_producer_ids"):
    """Give a block of producer ids to the present incarnation of a broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    count: _Count = PRODUCER_ID_BLOCK


class AlterIsr(_BrokerCommand, frozen=True, tag="alter_isr"):
    """A partition's leader (`broker_id`) proposes the in-sync set (KIP-497).

    Refused unless the proposer leads, in these epochs, and every member is unfenced and of the
    incarnation seen in sync by the leader (KIP-903). Members that leave an ISR which falls below
    min.insync.replicas stay eligible to lead (KIP-966), since no record is committed without them.
    """

    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    min_isr_default: _Count
    """min.insync.replicas, unless set by topic or cluster, see configs/topic.py."""


class PartitionChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one partition, of this epoch. None leaves a field unchanged.

    The ELR is never given. Applying derives the ELR from the members that leave the ISR, and from
    the min.insync.replicas of the moment, of which the proposer may know an older value.
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
    """Members to remove from the ELR, because they may have lost records. A new leader epoch
    begins, so that their earlier acknowledgements do not count any more."""
    lost: bool = False
    """Whether the members of `not_eligible` have lost records, from version 3. They have lost
    records for certain or by their report, so they leave even if no member with all committed
    records is left."""
    unclean: bool = False
    """Whether a replica in neither ISR nor ELR may enter the ISR, which loses records."""
    min_isr_default: _Count = 1
    """min.insync.replicas as in AlterIsr. Too low a value is safe, since fewer brokers stay
    eligible."""


PARTITION_CHANGES_VERSION: Final = 3
"""The version of ChangePartitions that refuses to remove the last member of ISR and ELR."""


class ChangePartitions(_Command, frozen=True, tag="change_partitions"):
    """The active controller changes partitions.

    Each change is applied separately. The result names the stale changes, which changed nothing.
    Version 3 refuses a change by which no living member with all committed records would be left,
    see `rules.check_records_kept`. Make the command by `elections.change_command`, which chooses
    the version.
    """

    changes: Annotated[
        tuple[PartitionChange, ...], msgspec.Meta(min_length=1, max_length=PARTITION_CHANGES_MAX)
    ]


class AlterClusterSettings(_Command, frozen=True, tag="alter_cluster_settings"):
    """Set broker configs, and topic configs for all topics without their own value.

    `removals` return to the default. The deciding node has validated names and values.
    """

    values: dict[_Text, _Value]
    removals: tuple[_Text, ...] = ()


Command: TypeAlias = (
    ClusterCreated
    | RegisterBroker
    | UnregisterBroker
    | ReplaceDirectory
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
    """Encode the command for the log. Equal commands have equal bytes.

    Every node applies the log at every start, so a command that cannot be decoded would stop all
    nodes for good. Each command is decoded here once, before its proposal. Raises
    msgspec.ValidationError if the command's values are not of their types.
    """
    encoded = _ENCODER.encode(command)
    _COMMAND.decode(encoded)
    return encoded


def decode_command(encoded: bytes) -> Command:
    """Decode a command. Raises MetadataVersionError for an unknown command."""
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
