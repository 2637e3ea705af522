"""Command sequences that make sense often enough to reach deep states."""

from __future__ import annotations

from hypothesis import strategies as st

from raftlog.metadata.apply import ApplyResult, apply
from raftlog.metadata.commands import (
    AddPartitions,
    AllocateProducerIds,
    AlterTopicConfigs,
    ClusterCreated,
    Command,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.types import BrokerEpoch, BrokerId, TopicId

BROKER_IDS = [BrokerId(number) for number in (1, 2, 3)]
TOPIC_IDS = [TopicId(f"{number:032x}") for number in range(5)]
NAMES = ["a", "b", "c", "..", "bad name"]
CONFIG_NAMES = ["retention.ms", "flush", "from.the.future"]

broker_ids = st.sampled_from(BROKER_IDS)
replica_lists = st.lists(broker_ids, min_size=0, max_size=3).map(tuple)
assignments = st.one_of(
    st.lists(st.just((BrokerId(1),)), min_size=1, max_size=3).map(tuple),
    st.lists(st.permutations(BROKER_IDS[:2]).map(tuple), min_size=1, max_size=3).map(tuple),
    st.lists(replica_lists, max_size=3).map(tuple),
)
configs = st.dictionaries(st.sampled_from(CONFIG_NAMES), st.sampled_from(["1", "x"]), max_size=2)

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        ClusterCreated,
        cluster_id=st.sampled_from(["one", "two"]),
        created_ms=st.integers(0, 2**40),
    ),
    st.builds(
        RegisterBroker,
        broker_id=broker_ids,
        directory_id=st.sampled_from(["d", "d", "d", "other"]),
        incarnation=st.sampled_from(["i1", "i2", "i3"]),
        host=st.just("localhost"),
        port=st.integers(0, 65_535),
        software_version=st.just("0.1.0"),
        rack=st.none() | st.just("r"),
        command_version=st.just(1),
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
        broker_epoch=st.integers(1, 12).map(BrokerEpoch),
        count=st.integers(1, 2000),
    ),
)
# Without brokers nearly all else is refused: most sequences begin with some.
_BROKERS = [
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
histories: st.SearchStrategy[list[Command]] = st.builds(
    lambda first, rest: [*first, *rest],
    st.sampled_from([[], _BROKERS, _BROKERS, _BROKERS]),
    st.lists(commands, max_size=25),
)


def run(history: list[Command], image: MetadataImage | None = None) -> MetadataImage:
    """The image after all of these."""
    image = MetadataImage() if image is None else image
    for command in history:
        apply(image, image.applied_index + 1, command)
    return image


def register(
    image: MetadataImage,
    broker_id: int = 1,
    *,
    incarnation: str = "first",
    directory_id: str = "d",
    rack: str | None = None,
) -> ApplyResult:
    """One start of a broker."""
    return apply(
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
        ),
    )


def create(
    image: MetadataImage, name: str, topic_id: int, *replicas: tuple[int, ...]
) -> ApplyResult:
    """A topic with these replicas."""
    return apply(
        image,
        image.applied_index + 1,
        CreateTopic(
            topic_id=TopicId(f"{topic_id:032x}"),
            name=name,
            configs={},
            assignments=tuple(tuple(BrokerId(b) for b in row) for row in replicas),
        ),
    )
