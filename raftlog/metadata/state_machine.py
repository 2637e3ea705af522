"""The metadata as the quorum drives it: command bytes in, results out, listeners told of deltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from raftlog.metadata.apply import ApplyResult, apply
from raftlog.metadata.commands import decode_command
from raftlog.metadata.delta import MetadataDelta, difference, share_rows
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.invariants import check_invariants
from raftlog.metadata.snapshot import from_snapshot, snapshot_pieces

LISTENERS_MAX: Final = 64

Listener: TypeAlias = Callable[[MetadataDelta], None]


class MetadataStateMachine:
    """Holds the image and moves it. Satisfies `raftlog.raft.StateMachine[ApplyResult]`.

    A listener is called after each command that changed topics, partitions or brokers, when the
    image holds the change already, and before the proposer is answered. It must not raise: what a
    node cannot follow ends the node.
    """

    def __init__(self) -> None:
        self._image = MetadataImage()
        self._listeners: list[Listener] = []

    @property
    def image(self) -> MetadataImage:
        """The present image. Ask each time: a snapshot from the leader replaces it as a whole."""
        return self._image

    def subscribe(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on. What is there already, `image` holds."""
        assert len(self._listeners) < LISTENERS_MAX
        self._listeners.append(listener)

    def apply(self, index: int, command: bytes) -> ApplyResult:
        """Apply one committed command. Raises MetadataVersionError, which must end the node."""
        result = apply(self._image, index, decode_command(command))
        self._tell(result.delta)
        return result

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        """Capture the image: the copy is quick, the pieces may be made on another thread."""
        captured = self._image.copy()
        return lambda: snapshot_pieces(captured)

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        """Prepare to take the snapshot's image in place of the present one.

        May run on another thread, while nothing is applied. What it returns must then be called
        on the event loop: it swaps the images and tells the listeners.
        Raises MetadataVersionError or LogError(STORAGE_FAILED); AssertionError for an image that
        contradicts itself.
        """
        image = from_snapshot(pieces)
        assert image.applied_index <= index
        check_invariants(image)
        # The log also holds entries that are no commands: the image may be older than its index.
        image.applied_index = index
        before = self._image
        share_rows(before, image)
        delta = difference(before, image)

        def install() -> None:
            assert self._image is before, "restored twice at once"
            assert before.applied_index == applied_index, "applied during a restore"
            self._image = image
            self._tell(delta)

        applied_index = before.applied_index
        return install

    def _tell(self, delta: MetadataDelta) -> None:
        if delta:
            for listener in self._listeners:
                listener(delta)
