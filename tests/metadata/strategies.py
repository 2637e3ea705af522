"""Command sequences with enough sense to reach deep states."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata.apply.apply import ApplyResult, apply
from raftlog.metadata.apply.topics import put_topic
from raftlog.metadata.commands import (
    KAFKA_ADDRESS_VERSION,
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
    PartitionChange,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
    decode_command,
    encode_command,
)
from raftlog.metadata.delta import NO_CHANGE
from raftlog.metadata.image import (
    NO_LEADER_ID,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import ErrorEntry, LogError
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)

BROKER_IDS = [BrokerId(number) for number in (1, 2, 3)]
TOPIC_IDS = [TopicId(f"{number:032x}") for number in range(5)]
NAMES = ["a", "b", "c", "..", "bad name"]
CONFIG_NAMES = ["retention.ms", "min.insync.replicas", "from.the.future"]

broker_ids = st.sampled_from(BROKER_IDS)
replica_lists = st.lists(broker_ids, min_size=0, max_size=3).map(tuple)
assignments = st.one_of(
    st.lists(st.just((BrokerId(1),)), min_size=1, max_size=3).map(tuple),
    st.lists(st.permutations(BROKER_IDS[:2]).map(tuple), min_size=1, max_size=3).map(tuple),
    st.lists(st.permutations(BROKER_IDS).map(tuple), min_size=1, max_size=3).map(tuple),
    st.lists(replica_lists, max_size=3).map(tuple),
)
configs = st.dictionaries(
    st.sampled_from(CONFIG_NAMES), st.sampled_from(["1", "2", "x"]), max_size=2
)
broker_epochs = st.integers(1, 12).map(BrokerEpoch)
members = st.lists(broker_ids, max_size=3).map(tuple)
changes = st.builds(
    PartitionChange,
    topic_id=st.sampled_from(TOPIC_IDS),
    partition=st.integers(-1, 3).map(PartitionId),
    partition_epoch=st.integers(0, 3).map(PartitionEpoch),
    isr=st.none() | members,
    leader=st.none() | st.sampled_from([NO_LEADER_ID, *BROKER_IDS]),
    replicas=st.none() | members,
    adding=st.none() | members,
    removing=st.none() | members,
    not_eligible=members,
    lost=st.booleans(),
    unclean=st.booleans(),
    min_isr_default=st.integers(1, 3),
)
change_versions = st.sampled_from([1, 3])

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        ClusterCreated,
        cluster_id=st.sampled_from(["one", "two"]),
        created_ms=st.integers(0, 2**40),
    ),
    st.builds(
        RegisterBroker,
        v=st.sampled_from([1, 4]),
        broker_id=broker_ids,
        directory_id=st.sampled_from(["d", "d", "d", "other"]),
        incarnation=st.sampled_from(["i1", "i2", "i3"]),
        host=st.just("localhost"),
        port=st.integers(0, 65_535),
        software_version=st.just("0.1.0"),
        rack=st.none() | st.just("r"),
        command_version=st.just(1),
        kafka_host=st.none() | st.sampled_from(["k", "gateway"]),
        kafka_port=st.none() | st.integers(0, 65_535),
    ),
    st.builds(
        ReplaceDirectory,
        broker_id=broker_ids,
        broker_epoch=broker_epochs,
        directory_id=st.sampled_from(["d", "other"]),
    ),
    st.builds(
        CreateTopic,
        topic_id=st.sampled_from([*TOPIC_IDS, TopicId("not an id")]),
        name=st.sampled_from(NAMES),
        configs=configs,
        assignments=assignments,
    ),
    st.builds(DeleteTopic, topic_id=st.sampled_from(TOPIC_IDS)),
    st.builds(
        AddPartitions,
        topic_id=st.sampled_from(TOPIC_IDS),
        partition_count=st.integers(1, 3),
        assignments=assignments,
    ),
    st.builds(
        AlterTopicConfigs,
        topic_id=st.sampled_from(TOPIC_IDS),
        values=configs,
        removals=st.lists(st.sampled_from(CONFIG_NAMES), max_size=2).map(tuple),
    ),
    st.builds(
        AllocateProducerIds,
        broker_id=broker_ids,
        broker_epoch=broker_epochs,
        count=st.integers(1, 2000),
    ),
    *(
        st.builds(kind, broker_id=broker_ids, broker_epoch=broker_epochs)
        for kind in (UnregisterBroker, FenceBroker, UnfenceBroker, SetControlledShutdown)
    ),
    st.builds(
        AlterBroker,
        broker_id=broker_ids,
        maintenance=st.none() | st.booleans(),
        decommissioning=st.none() | st.booleans(),
    ),
    st.builds(
        AlterIsr,
        broker_id=broker_ids,
        broker_epoch=broker_epochs,
        topic_id=st.sampled_from(TOPIC_IDS),
        partition=st.integers(-1, 3).map(PartitionId),
        leader_epoch=st.integers(0, 3).map(LeaderEpoch),
        partition_epoch=st.integers(0, 3).map(PartitionEpoch),
        isr=st.lists(st.tuples(broker_ids, broker_epochs), max_size=3).map(tuple),
        min_isr_default=st.integers(1, 3),
    ),
    st.builds(
        ChangePartitions,
        v=change_versions,
        changes=st.lists(changes, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        AlterClusterSettings,
        values=configs,
        removals=st.lists(st.sampled_from(CONFIG_NAMES), max_size=2).map(tuple),
    ),
)
# Without brokers nearly all else is refused: most histories begin with some.
_BROKERS: list[Command] = [
    RegisterBroker(
        broker_id=broker_id,
        directory_id="d",
        incarnation="i0",
        host="localhost",
        port=1,
        software_version="0.1.0",
    )
    for broker_id in BROKER_IDS
]
_BROKERS += [
    UnfenceBroker(broker_id=broker_id, broker_epoch=BrokerEpoch(broker_id))
    for broker_id in BROKER_IDS
]


_TOPICS: list[Command] = [
    CreateTopic(
        topic_id=TOPIC_IDS[0],
        name="a",
        configs={},
        assignments=((BROKER_IDS[0], BROKER_IDS[1]), (BROKER_IDS[1], BROKER_IDS[0])),
    ),
    CreateTopic(topic_id=TOPIC_IDS[1], name="b", configs={}, assignments=(tuple(BROKER_IDS),) * 2),
]


@st.composite
def _histories(draw: st.DrawFn) -> list[Command]:
    first = [[], _BROKERS, _BROKERS + _TOPICS[:1], _BROKERS + _TOPICS, _BROKERS + _TOPICS]
    history = list(draw(st.sampled_from(first)))
    image = run(history)
    for _ in range(draw(st.integers(0, 25))):
        command = draw(aimed(image) if draw(st.booleans()) else commands)
        history.append(command)
        run([command], image)
    return history


def aimed(image: MetadataImage) -> st.SearchStrategy[Command]:
    """Commands that name the image's epochs, so that more of them apply than by chance."""
    kinds: list[st.SearchStrategy[Command]] = []
    if image.brokers:
        brokers = st.sampled_from(list(image.brokers.values()))
        for kind in (FenceBroker, UnfenceBroker, SetControlledShutdown, UnregisterBroker):
            kinds.append(brokers.map(partial(about, kind)))
    rows = [(t, row) for t in image.topics_by_id.values() for row in t.partitions]
    if rows:
        targets = st.sampled_from(rows)
        kinds += [
            targets.flatmap(lambda target: isr_changes(image, *target)),
            targets.flatmap(lambda target: isr_changes(image, *target)),
            st.lists(targets, min_size=1, max_size=3).flatmap(partition_changes),
        ]
    return st.one_of(kinds) if kinds else commands


def about(
    kind: type[FenceBroker | UnfenceBroker | SetControlledShutdown | UnregisterBroker],
    broker: BrokerImage,
) -> Command:
    """A command about the broker's present incarnation."""
    return kind(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)


def isr_changes(
    image: MetadataImage, topic: TopicImage, row: PartitionImage
) -> st.SearchStrategy[Command]:
    """A proposal of the partition's leader."""

    def with_epochs(broker_ids: list[BrokerId]) -> tuple[tuple[BrokerId, BrokerEpoch], ...]:
        return tuple((b, image.brokers[b].broker_epoch) for b in broker_ids)

    leader = image.brokers.get(row.leader)
    return st.builds(
        AlterIsr,
        broker_id=st.just(row.leader),
        broker_epoch=st.just(BrokerEpoch(0) if leader is None else leader.broker_epoch),
        topic_id=st.just(topic.topic_id),
        partition=st.just(row.partition),
        leader_epoch=st.just(row.leader_epoch),
        partition_epoch=st.just(row.partition_epoch),
        isr=st.lists(st.sampled_from(row.replicas), unique=True).map(with_epochs),
        min_isr_default=st.integers(1, 3),
    )


def partition_changes(
    targets: list[tuple[TopicImage, PartitionImage]],
) -> st.SearchStrategy[Command]:
    """Changes that contradict themselves less often than random ones."""

    def one(target: tuple[TopicImage, PartitionImage]) -> st.SearchStrategy[PartitionChange]:
        topic, row = target
        part = st.lists(st.sampled_from(row.replicas), unique=True, max_size=3).map(tuple)
        some = st.none() | st.none() | part
        return st.builds(
            PartitionChange,
            topic_id=st.just(topic.topic_id),
            partition=st.just(row.partition),
            partition_epoch=st.just(row.partition_epoch),
            isr=st.none() | part,
            leader=st.none() | st.sampled_from([NO_LEADER_ID, *row.replicas]),
            replicas=st.none() | st.none() | st.permutations(BROKER_IDS).map(tuple),
            adding=some,
            removing=some,
            not_eligible=st.just(()) | part,
            lost=st.booleans(),
            unclean=st.booleans(),
            min_isr_default=st.integers(1, 3),
        )

    return st.builds(ChangePartitions, v=change_versions, changes=st.tuples(*map(one, targets)))


histories: st.SearchStrategy[list[Command]] = _histories()


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    """Brokers by their numbers."""
    return tuple(map(BrokerId, numbers))


def run(history: list[Command], image: MetadataImage | None = None) -> MetadataImage:
    """The image after all of these."""
    image = MetadataImage() if image is None else image
    for command in history:
        apply(image, image.applied_index + 1, command)
    return image


def carry_out(image: MetadataImage, command: Command) -> ApplyResult:
    """Apply a command that must not be refused."""
    result = apply(image, image.applied_index + 1, command)
    result.check()
    return result


def register(
    image: MetadataImage,
    broker_id: int = 1,
    *,
    incarnation: str = "first",
    directory_id: str = "d",
    rack: str | None = None,
    fenced: bool = False,
    kafka: tuple[str, int] | None = None,
) -> ApplyResult:
    """Start a broker, and unfence it unless `fenced`; `kafka` is its Kafka listener's address."""
    kafka_host, kafka_port = kafka or (None, None)
    result = apply(
        image,
        image.applied_index + 1,
        RegisterBroker(
            broker_id=BrokerId(broker_id),
            directory_id=directory_id,
            incarnation=incarnation,
            host="localhost",
            port=8082,
            software_version="0.1.0",
            rack=rack,
            v=1 if kafka is None else KAFKA_ADDRESS_VERSION,
            kafka_host=kafka_host,
            kafka_port=kafka_port,
        ),
    )
    if result.refusal is None and not fenced:
        unfence(image, broker_id)
    return result


def unfence(image: MetadataImage, broker_id: int) -> None:
    """The controller hears of the broker."""
    broker = image.brokers[BrokerId(broker_id)]
    carry_out(image, UnfenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))


def fence(image: MetadataImage, broker_id: int) -> None:
    """Expire the broker's session; its partitions stay unchanged."""
    broker = image.brokers[BrokerId(broker_id)]
    carry_out(image, FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))


def shut_down(image: MetadataImage, broker_id: int) -> None:
    """Begin the broker's stop; its partitions stay unchanged."""
    broker = image.brokers[BrokerId(broker_id)]
    carry_out(
        image,
        SetControlledShutdown(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch),
    )


def alter_broker(
    image: MetadataImage,
    broker_id: int,
    *,
    maintenance: bool | None = None,
    decommissioning: bool | None = None,
) -> None:
    """Set an operator's requests about the broker; its partitions stay unchanged."""
    carry_out(
        image,
        AlterBroker(
            broker_id=BrokerId(broker_id), maintenance=maintenance, decommissioning=decommissioning
        ),
    )


def create(
    image: MetadataImage,
    name: str,
    topic_id: int,
    *replicas: tuple[int, ...],
    configs: dict[str, str] | None = None,
) -> ApplyResult:
    """A topic with these replicas."""
    return apply(
        image,
        image.applied_index + 1,
        CreateTopic(
            topic_id=TopicId(f"{topic_id:032x}"),
            name=name,
            configs=configs or {},
            assignments=tuple(tuple(BrokerId(b) for b in row) for row in replicas),
        ),
    )


def set_row(image: MetadataImage, name: str, partition: int = 0, **fields: Any) -> PartitionImage:
    """Put a partition into a state many commands away. The image is checked."""
    topic = image.topic(name)
    row = replace(topic.partitions[partition], **fields)
    rows = list(topic.partitions)
    rows[partition] = row
    put_topic(image, replace(topic, partitions=tuple(rows)))
    check_invariants(image)
    return row


def set_configs(image: MetadataImage, name: str, configs: dict[str, str]) -> None:
    """Give a topic these settings; its partitions stay unchanged."""
    put_topic(image, replace(image.topic(name), configs=configs))
    check_invariants(image)


def ready() -> MetadataImage:
    """Brokers 1 and 2, and topic a with three partitions of one replica."""
    image = MetadataImage()
    for broker_id in (1, 2):
        register(image, broker_id)
    create(image, "a", 1, (1,), (2,), (1,))
    return image


def refusal_of(image: MetadataImage, command: Command) -> ErrorEntry:
    """Apply a command that must be refused without a change."""
    before = image.copy()
    result = apply(image, image.applied_index + 1, command)
    assert result.refusal is not None
    assert result.delta is NO_CHANGE
    before.applied_index += 1
    assert image == before, "a refused command changes nothing"
    with pytest.raises(LogError) as raised:
        result.check()
    assert raised.value.message == result.refusal.message
    return result.refusal.entry


# Possible images between two commands of any controller, as input for decisions.
BROKER_NUMBERS = range(1, 6)


@st.composite
def cluster_images(
    draw: st.DrawFn, *, min_isr: bool = True, all_lost: bool = True
) -> MetadataImage:
    """A valid image of five brokers, in any state, and topics of one to four replicas.

    `all_lost`: also with partitions of which all replicas may have lost records.
    """
    image = MetadataImage()
    for number in BROKER_NUMBERS:
        register(image, number)
    for number in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, 4))
        replicas = st.lists(
            st.sampled_from(BROKER_NUMBERS), unique=True, min_size=factor, max_size=factor
        ).map(tuple)
        configs: dict[str, str] = {}
        if min_isr and draw(st.booleans()):
            configs["min.insync.replicas"] = str(draw(st.integers(1, 3)))
        if draw(st.integers(0, 4)) == 0:
            configs["unclean.leader.election.enable"] = "true"
        rows = draw(st.lists(replicas, min_size=1, max_size=4))
        topic = create(image, f"t{number}", number, *rows, configs=configs).topic()
        for row in topic.partitions:
            _any_state(draw, image, topic.name, row, all_lost=all_lost)
    for number in BROKER_NUMBERS:
        state = draw(st.sampled_from(["alive", "alive", "alive", "fenced", "stopping"]))
        if state == "fenced":
            fence(image, number)
        elif state == "stopping":
            shut_down(image, number)
        state = draw(st.sampled_from(["none", "none", "none", "maintenance", "decommissioning"]))
        alter_broker(
            image,
            number,
            maintenance=state == "maintenance",
            decommissioning=state == "decommissioning",
        )
    return image


def _any_state(
    draw: st.DrawFn, image: MetadataImage, name: str, row: PartitionImage, *, all_lost: bool
) -> None:
    replicas = row.replicas
    places = [draw(st.sampled_from(["isr", "isr", "elr", "out"])) for _ in replicas]
    isr = tuple(b for b, place in zip(replicas, places, strict=True) if place == "isr")
    elr = tuple(b for b, place in zip(replicas, places, strict=True) if place == "elr")
    if not isr and not elr and not all_lost:
        elr = replicas[:1]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    if len(replicas) > 1 and draw(st.integers(0, 3)) == 0:
        roles = [draw(st.sampled_from(["stays", "adding", "removing"])) for _ in replicas[1:]]
        adding = tuple(b for b, r in zip(replicas[1:], roles, strict=True) if r == "adding")
        removing = tuple(b for b, r in zip(replicas[1:], roles, strict=True) if r == "removing")
    set_row(
        image,
        name,
        row.partition,
        isr=isr,
        elr=elr,
        leader=draw(st.sampled_from([*isr, NO_LEADER_ID])),
        leader_epoch=1,
        partition_epoch=draw(st.integers(1, 3)),
        unclean_epoch=draw(st.sampled_from([-1, 0, 1])),
        adding=adding,
        removing=removing,
    )


def carry_out_plan(image: MetadataImage, plan: Iterable[Command]) -> list[Command]:
    """Apply a plan step by step, like a controller: no command may turn out to be stale."""
    commands = []
    for command in plan:
        commands.append(decode_command(encode_command(command)))
        result = carry_out(image, commands[-1])
        check_invariants(image)
        if isinstance(command, ChangePartitions):
            assert not result.partitions().stale
            assert result.delta, "a plan changes something with every command"
    return commands
