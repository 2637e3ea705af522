"""The quorum's state machine and the invariants of every image.

Command bytes come in, results and deltas go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from raftlog.metadata.apply.apply import ApplyResult, apply
from raftlog.metadata.apply.cluster import CLUSTER_SETTINGS_MAX
from raftlog.metadata.commands import decode_command
from raftlog.metadata.delta import MetadataDelta, difference, share_rows
from raftlog.metadata.image import (
    NO_EPOCH,
    NO_LEADER_ID,
    MetadataImage,
    PartitionImage,
    topic_name_fault,
)
from raftlog.metadata.snapshot import from_snapshot, snapshot_pieces

LISTENERS_MAX: Final = 64

Listener: TypeAlias = Callable[[MetadataDelta], None]


class MetadataStateMachine:
    """Holds and changes the image. Satisfies `raftlog.raft.StateMachine[ApplyResult]`.

    A listener is called after each command with a change, once the image holds the change, and
    before the proposer's response. A listener must not raise, since the node would end.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        """The present image. Read it each time, as a snapshot replaces the image as a whole."""
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every later change. Earlier state is in `image`."""
        assert len(self._listeners) < LISTENERS_MAX
        self._listeners.append(listener)

    def apply(self, index: int, command: bytes) -> ApplyResult:
        """Apply one committed command. Raises MetadataVersionError, which must end the node."""
        result = apply(self.image, index, decode_command(command))
        self._notify(result.delta)
        return result

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        """Capture the image. The copy is quick, and the pieces may be made on another thread."""
        captured = self.image.copy()
        return lambda: snapshot_pieces(captured)

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        """Prepare to replace the present image by the snapshot's.

        May run on another thread, while no command is applied. Call the returned function on the
        event loop. It swaps the images and calls the listeners. Raises MetadataVersionError or
        LogError(STORAGE_FAILED), or AssertionError for an image that contradicts itself.
        """
        image = from_snapshot(pieces)
        assert image.applied_index <= index
        check_invariants(image)
        # The log also holds entries without a command, so the image may be older than its index.
        image.applied_index = index
        before = self.image
        share_rows(before, image)
        delta = difference(before, image)

        def install() -> None:
            assert self.image is before, "restored twice at once"
            assert before.applied_index == applied_index, "applied during a restore"
            self.image = image
            self._notify(delta)

        applied_index = before.applied_index
        return install

    def _notify(self, delta: MetadataDelta) -> None:
        if delta:
            for listener in self._listeners:
                listener(delta)


ROWS_PER_STEP: Final = 1_000
"""Rows checked between two steps, about a millisecond."""


def check_invariants(image: MetadataImage) -> None:
    """Raise AssertionError if the image contradicts itself."""
    for _ in invariant_steps(image):
        pass


def invariant_steps(image: MetadataImage) -> Iterator[None]:
    """Check in small steps. Each `next` examines some rows. Raises AssertionError.

    The image must not change between the steps. After the last step the image is valid.
    """
    assert image.applied_index >= 0
    assert image.next_producer_id >= 0
    assert len(image.topics_by_id) == len(image.topics_by_name)
    assert len(image.cluster_settings) <= CLUSTER_SETTINGS_MAX
    for broker_id, broker in image.brokers.items():
        assert broker_id == broker.broker_id
        assert 1 <= broker.broker_epoch <= image.applied_index
        assert (broker.kafka_host is None) == (broker.kafka_port is None), f"half: {broker}"
    looked_at = 0
    for topic_id, topic in image.topics_by_id.items():
        assert topic_id == topic.topic_id
        assert image.topics_by_name.get(topic.name) is topic
        assert topic_id not in image.deleted_topic_ids
        assert topic_name_fault(topic.name) is None
        assert topic.partitions, f"{topic.name} has no partition"
        for position, row in enumerate(topic.partitions):
            assert row.partition == position
            _check_partition(image, row)
            looked_at += 1
            if looked_at % ROWS_PER_STEP == 0:
                yield
    yield


def _check_partition(image: MetadataImage, row: PartitionImage) -> None:
    replicas = row.replicas
    assert replicas, f"partition without replicas: {row}"
    assert all(broker_id in image.brokers for broker_id in replicas), f"unknown broker: {row}"
    assert len(set(replicas)) == len(replicas), f"replica twice: {row}"
    if row.isr != replicas or row.elr:
        _check_part(row, row.isr, "isr")
        _check_part(row, row.elr, "elr")
        assert not set(row.isr) & set(row.elr), f"both in isr and elr: {row}"
    if row.adding or row.removing:
        _check_part(row, row.adding, "adding")
        _check_part(row, row.removing, "removing")
        assert not set(row.adding) & set(row.removing), f"both adding and removing: {row}"
        assert len(replicas) not in {len(row.adding), len(row.removing)}, f"none stays: {row}"
    assert row.leader == NO_LEADER_ID or row.leader in row.isr, f"leader out of sync: {row}"
    # Every new leader epoch is also a change of the partition.
    assert 0 <= row.leader_epoch <= row.partition_epoch, f"epochs: {row}"
    assert NO_EPOCH <= row.unclean_epoch <= row.leader_epoch, f"epochs: {row}"


def _check_part(row: PartitionImage, members: tuple[int, ...], what: str) -> None:
    # The order is that of the replicas, so that equal sets are equal rows on every node.
    expected = tuple(broker_id for broker_id in row.replicas if broker_id in members)
    assert members == expected, f"{what} is no part of the replicas, in their order: {row}"
