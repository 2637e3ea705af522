"""The state of a replica results from entries applied in the order of the log. Pure.

| entry | counts if | then |
|---|---|---|
| Fence, WallFence | its term is larger than the term | the term and the primary are its |
| Commands | its term is the term | its commands are applied, each request once |
| Digest | its term is the term | compared, if this replica has the digest of its position |

Each entry moves the position by one, also without effect. So only the order of the log decides
which commands happen. Commands of a replaced primary do not.

The log's time advances at most with the monotonic time of the primaries. A wall clock that is wrong
or jumps neither forgets the results of requests nor keeps them for longer.

| commands | the log's time |
|---|---|
| the first of a log | is their timestamp, the wall clock of the first primary |
| the first of a term | stays |
| later ones of a term | advances by the difference of their timestamps, if positive |
| all under a WallFence | is the largest timestamp so far |

Results of requests are kept, so that a repeated request happens once. Raft's dissertation (Ongaro,
2014, 6.3) keeps the last result of each client. Here each request has a separate name, and its
result is kept for a time of the log. A full table refuses new named requests, on all replicas
alike, and forgets none early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple

import msgspec

from raftlog_replicated.codec import DIGEST_EVERY, Commands, Digest, Entry, Fence, WallFence
from raftlog_replicated.errors import ApplyError, DivergedError, SnapshotError, TooManyRequestsError
from raftlog_replicated.types import At, Codec, Command, Digesting, Position, Result, StateMachine

KEPT_MS: Final = 600_000
"""Milliseconds in which a request happens once. All its copies must be in the log within this time
of the first."""
KEPT_MAX: Final = 100_000
"""Results at one time, 170 new requests a second."""
REQUEST_ID_CHARACTERS_MAX: Final = 128


class Kept(NamedTuple, Generic[Result]):
    """A result, and the log's time of its request."""

    timestamp_ms: int
    result: Result


class Requests(Generic[Result]):
    """The table."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept[Result]] = {}
        """Results in order of time."""

    def expire(self, now_ms: int) -> None:
        """Forget what is older than KEPT_MS by the log's time."""
        kept = self.kept
        while kept:
            oldest = next(iter(kept))
            if kept[oldest].timestamp_ms + KEPT_MS > now_ms:
                break
            del kept[oldest]

    @property
    def is_full(self) -> bool:
        """Whether a new request is refused."""
        return len(self.kept) >= KEPT_MAX

    def keep(self, request_id: str, timestamp_ms: int, result: Result) -> None:
        """Remember the result of a new request."""
        self.kept[request_id] = Kept(timestamp_ms, result)


DIGESTS_KEPT: Final = 8
"""Own digests kept of the last due positions. The primary's digests come with a later batch."""
HEADER_REQUESTS: Final = 4_096
"""Results in one chunk of a snapshot's header."""


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """The first chunk of a snapshot."""

    position: Position
    fence: Fence | WallFence
    timestamp_ms: int
    commands: int
    request_chunks: int
    stamp_ms: int | None = None


class _Request(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    timestamp_ms: int
    result: bytes


_heads: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)
_requests: msgspec.msgpack.Decoder[list[_Request]] = msgspec.msgpack.Decoder(list[_Request])
_encode = msgspec.msgpack.Encoder().encode
NO_FENCE: Final = Fence(0, "")


class Applier(Generic[Command, Result]):
    """A state machine, and the rules for its commands."""

    def __init__(
        self, machine: StateMachine[Command, Result], codec: Codec[Command, Result]
    ) -> None:
        self.machine = machine
        self._codec = codec
        self.position: Position = 0
        self.fence: Fence | WallFence = NO_FENCE
        """The last counted fence."""
        self.timestamp_ms = 0
        """The log's time."""
        self._stamp_ms: int | None = None
        """The largest timestamp of commands since the last counted fence."""
        self.commands = 0
        """Commands applied so far, of all terms."""
        self.digests: dict[Position, bytes] = {}
        """Own digests of the newest positions where a digest was due."""
        self._requests: Requests[Result] = Requests()

    @property
    def term(self) -> int:
        """Term of the last counted fence. 0 without a fence."""
        return self.fence.term

    def apply(
        self, entry: Entry, timestamp_ms: int, commands: Sequence[Command] | None = None
    ) -> list[Result | TooManyRequestsError] | None:
        """Apply the next entry. Returns the results of counted commands. None for all else.

        `commands` are those of the entry, if at hand. Raises UnknownEntryError before any
        change, or ApplyError or DivergedError.
        """
        match entry:
            case Commands() if entry.term == self.fence.term:
                if commands is None:
                    decode = self._codec.decode_command
                    commands = [decode(payload) for payload in entry.payloads]
                results = self._apply_all(entry, commands, timestamp_ms)
                self.position += 1
                self._note_digest(len(commands))
                return results
            case Fence() | WallFence() if entry.term > self.fence.term:
                self.fence, self._stamp_ms = entry, None
            case Digest() if entry.term == self.fence.term:
                own = self.digests.get(entry.position)
                if own is not None and own != entry.digest:
                    raise DivergedError(
                        f"At position {entry.position} the state differs from the primary's "
                        f"(replica {self.fence.replica}, term {entry.term})."
                    )
        self.position += 1
        return None

    def _apply_all(
        self, entry: Commands, commands: Sequence[Command], timestamp_ms: int
    ) -> list[Result | TooManyRequestsError]:
        now_ms = self._advance(timestamp_ms)
        apply, term, position = self.machine.apply, entry.term, self.position
        names = entry.requests
        index = 0
        try:
            if not names:
                results: list[Result | TooManyRequestsError] = []
                for index, command in enumerate(commands):
                    results.append(apply(command, At(position, index, term, now_ms)))
                return results
            self._requests.expire(now_ms)
            results = []
            for index, command in enumerate(commands):
                at = At(position, index, term, now_ms)
                results.append(self._apply_once(names.get(index), command, at))
        except Exception as error:
            raise ApplyError(
                f"apply raised {error!r} for command {index} of position {position}."
            ) from error
        return results

    def _advance(self, stamp_ms: int) -> int:
        """Advance the log's time for commands with a timestamp, and return it."""
        if isinstance(self.fence, WallFence):
            self.timestamp_ms = max(self.timestamp_ms, stamp_ms)
        elif self._stamp_ms is not None:
            self.timestamp_ms += max(stamp_ms - self._stamp_ms, 0)
        elif not self.timestamp_ms:
            self.timestamp_ms = stamp_ms
        self._stamp_ms = max(stamp_ms, self._stamp_ms or stamp_ms)
        return self.timestamp_ms

    def _apply_once(
        self, request_id: str | None, command: Command, at: At
    ) -> Result | TooManyRequestsError:
        if request_id is None:
            return self.machine.apply(command, at)
        kept = self._requests.kept.get(request_id)
        if kept is not None:
            return kept.result
        if self._requests.is_full:
            return TooManyRequestsError(
                "The results of too many requests are kept; try again in some minutes."
            )
        result = self.machine.apply(command, at)
        self._requests.keep(request_id, at.timestamp_ms, result)
        return result

    def _note_digest(self, count: int) -> None:
        before = self.commands // DIGEST_EVERY
        self.commands += count
        if self.commands // DIGEST_EVERY > before and isinstance(self.machine, Digesting):
            self.digests[self.position] = self.machine.digest()
            if len(self.digests) > DIGESTS_KEPT:
                del self.digests[next(iter(self.digests))]

    # Snapshots

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment, in chunks. `apply` may be called between them."""
        requests = list(self._requests.kept.items())
        count = -(-len(requests) // HEADER_REQUESTS)
        head = _Head(
            position=self.position,
            fence=self.fence,
            timestamp_ms=self.timestamp_ms,
            commands=self.commands,
            request_chunks=count,
            stamp_ms=self._stamp_ms,
        )
        # The first chunk now, as a generator would begin after later commands.
        chunks = iter(self.machine.snapshot())
        first = [chunk] if (chunk := next(chunks, None)) is not None else []
        return self._chunks(head, requests, chain(first, chunks))

    def _chunks(
        self, head: _Head, requests: list[tuple[str, Kept[Result]]], chunks: Iterator[bytes]
    ) -> Iterator[bytes]:
        yield _encode(head)
        encode = self._codec.encode_result
        for begin in range(0, len(requests), HEADER_REQUESTS):
            part = requests[begin : begin + HEADER_REQUESTS]
            yield _encode(
                [_Request(name, kept.timestamp_ms, encode(kept.result)) for name, kept in part]
            )
        yield from chunks

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by a whole snapshot's. Raises SnapshotError or ApplyError."""
        rest = iter(chunks)
        try:
            head = _heads.decode(next(rest))
            kept = {
                stored.request_id: Kept(
                    stored.timestamp_ms, self._codec.decode_result(stored.result)
                )
                for _ in range(head.request_chunks)
                for stored in _requests.decode(next(rest))
            }
        except (StopIteration, msgspec.DecodeError) as error:
            raise SnapshotError(f"The snapshot's beginning cannot be read: {error!r}") from error
        try:
            self.machine.restore(rest)
        except Exception as error:
            raise ApplyError(f"restore raised {error!r}.") from error
        self.position, self.fence = head.position, head.fence
        self.timestamp_ms, self.commands = head.timestamp_ms, head.commands
        self._stamp_ms = head.stamp_ms
        self._requests.kept = kept
        self.digests.clear()

    def reset(self) -> None:
        """Back to the empty state. Raises ApplyError."""
        try:
            self.machine.restore(())
        except Exception as error:
            raise ApplyError(f"restore raised {error!r}.") from error
        self.position, self.fence = 0, NO_FENCE
        self.timestamp_ms = self.commands = 0
        self._stamp_ms = None
        self._requests.kept = {}
        self.digests.clear()
