"""One client's connection: frames in, answers out in the order of the requests.

Requests begin in order and are handled at the same time, up to a bound; their answers wait for each
other in `_slots`. A request that may be held back (a fetch, a join) lets no later one begin: its
answer would have to wait all the same.

All connections receive into one buffer of the listener, which is empty again when the event loop
goes on: frames are copied out, and a large frame gets a buffer of its exact size, which the kernel
fills. Its bytes are taken from the node's budget first; without room the socket is not read. So
an idle connection holds no buffer, and a producer is slowed down, never refused.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from raftlog.broker.limits import RateGuard, address_group
from raftlog.kafka.apis import API_VERSIONS, APIS, Api, unsupported_version
from raftlog.kafka.call import Call
from raftlog.kafka.framing import (
    PREFIX_BYTES,
    SIZE_BYTES,
    Prefix,
    answer_head,
    parse_head,
    parse_prefix,
)
from raftlog.kafka.metrics import EndReason
from raftlog.record.errors import LogError
from raftlog.record.types import Buffer
from raftlog.schema.codec import ELEMENTS_MAX
from raftlog.schema.errors import DecodeError

if TYPE_CHECKING:
    from raftlog.kafka.listener import KafkaListener

LARGE_BYTES: Final = 32 * 1024
"""A frame of more gets a buffer of its own."""
MAPPED_BYTES: Final = 1 << 20
"""A buffer of more is mapped, so that only received bytes cost time."""
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""With more in the transport no further answer is given to it."""

logger = logging.getLogger(__name__)


def _large_buffer(size: int) -> memoryview:
    """Memory for a frame that is still to come; little time, whatever a client claims.

    A bytearray is cleared at once: 32 MiB, claimed by 14 bytes, held the event loop for 10 ms. The
    pages of a map are cleared as bytes arrive.
    """
    return memoryview(mmap.mmap(-1, size) if size > MAPPED_BYTES else bytearray(size))


def _encoded(
    api: Api, version: int, correlation_id: int, response: msgspec.Struct | None
) -> Sequence[Buffer]:
    """The answer's pieces; none without a response. Raises EncodeError."""
    if response is None:
        return ()
    pieces = api.response_codec(version).encode_pieces(response)
    size = sum(map(len, pieces))
    is_flexible = api.is_answer_flexible(version)
    return [answer_head(correlation_id, size, is_flexible=is_flexible), *pieces]


class _Slot:
    """The place of one request's answer."""

    __slots__ = ("answer", "api", "is_done", "is_refused", "size", "taken", "task")

    def __init__(self, api: Api, taken: int) -> None:
        self.api = api
        self.taken = taken
        """Bytes of the budget for the request's frame."""
        self.answer: Sequence[Buffer] = ()
        """In pieces; none: there is no answer."""
        self.size = 0
        """Of the answer, taken from the budget until the client has it."""
        self.is_done = False
        self.is_refused = False
        """There is no answer, and no later one of the connection is sent."""
        self.task: asyncio.Task[None] | None = None


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._broker = listener.broker
        self._settings = listener.settings
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.address_group = ""
        """The address, as limits count it."""
        self._rest = bytearray()
        """Received bytes of a frame that is not whole yet, or has to wait for its turn."""
        self._large: memoryview | None = None
        """A large frame that is being received, without its size."""
        self._filled = 0
        """Bytes of it that have come."""
        self._is_muted = False
        self._slots: deque[_Slot] = deque()
        self._is_answering = True
        """Until a request without its answer has had its turn."""
        self._is_write_paused = False
        self._sending = 0
        """Bytes of answers in the transport, held in the budget."""
        self._written = 0
        """Bytes of all answers so far."""
        self._is_ending = False
        self.end_reason = EndReason.CLIENT
        """The listener's first reason to end it, or the client's end."""
        now = listener.now()
        self._active_at = now
        self._receiving_since: float | None = None
        self._received = 0
        """Bytes since then."""
        self._reader_guard: RateGuard | None = None
        """While the transport holds something at each look."""
        self._looked_at = now
        self._taken = 0
        """Bytes of answers that the client had taken by then."""

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.address_group = address_group(self.address)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        refusal = self._listener.opened(self)
        if refusal is not None:
            self._set_ending(refusal)
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """End what waits for this client alone. Writes go on: they may be in the log already."""
        self._is_ending = True
        self._transport = None
        for slot in self._slots:
            if slot.task is not None and slot.api.ends_with_connection:
                slot.task.cancel()
                # The task may not have begun; then it never does.
                self._give_frame(slot)
            self._give(slot.size)
        self._slots.clear()
        self._drop_large()
        self._rest.clear()
        self._sent()
        self._listener.closed(self)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._listener.buffer

    def buffer_updated(self, count: int) -> None:
        """So many bytes have come."""
        self._active_at = self._listener.now()
        self._received += count
        if self._is_ending:
            return
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                frame, self._large = self._large, None
                self._receiving_since = None
                self._begin(frame, len(frame))
                self._after_parsing()
            return
        received = self._listener.buffer[:count]
        if self._rest:
            self._rest += received
            self._parse_rest()
        else:
            end = self._parse(received)
            if end < count and not self._is_ending:
                self._rest += received[end:]
        self._after_parsing()

    def pause_writing(self) -> None:
        """The client is slow to take its answers."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """All is sent."""
        self._is_write_paused = False
        self._sent()
        self._flush()

    # Frames

    def _parse_rest(self) -> None:
        # Frames are copies: nothing refers to the bytes that are cut off.
        end = self._parse(self._rest)
        del self._rest[:end]

    def _parse(self, data: bytearray | memoryview) -> int:
        """Begin the requests that are there; the end of what was used."""
        position = 0
        while (
            len(data) - position >= PREFIX_BYTES
            and self._may_begin()
            and self._listener.may_begin(self)
        ):
            prefix = parse_prefix(data, position)
            complaint = self._complaint(prefix)
            if complaint is not None:
                self._refuse(complaint)
                return len(data)
            begin, end = position + SIZE_BYTES, position + SIZE_BYTES + prefix.size
            is_large, is_whole = prefix.size > LARGE_BYTES, end <= len(data)
            if is_large and not self._listener.take(self, prefix.size):
                break
            if is_whole:
                position = end
                self._begin(bytes(data[begin:end]), prefix.size if is_large else 0)
            elif is_large:
                large = _large_buffer(prefix.size)
                self._filled = len(data) - begin
                large[: self._filled] = data[begin:]
                self._large = large
                return len(data)
            else:
                break
        return position

    def _complaint(self, prefix: Prefix) -> str | None:
        """Why the frame is not taken; None if it is."""
        api = APIS.get(prefix.api_key)
        if api is None:
            return f"there is no API {prefix.api_key} here"
        if not api.first <= prefix.api_version <= api.last and prefix.api_key != API_VERSIONS:
            return f"{api.name} has no version {prefix.api_version} here"
        settings = self._settings
        most = settings.produce_bytes_max if api.takes_records else settings.request_bytes_max
        most = min(most, self._broker.bytes_in_flight.per_client_max)
        if not PREFIX_BYTES <= prefix.size <= most:
            return f"{api.name} of {prefix.size} bytes; {most} are allowed"
        return None

    def _may_begin(self) -> bool:
        """Whether another request may begin now."""
        slots = self._slots
        return (
            not self._is_ending
            and not self._is_write_paused
            and self._large is None
            and len(slots) < self._settings.requests_per_connection_max
            and not (slots and slots[-1].api.is_held and not slots[-1].is_done)
        )

    def _after_parsing(self) -> None:
        """Read the socket while a request may begin, or goes on; note since when one is coming."""
        if self._transport is None or self._is_ending:
            return
        is_coming = self._large is not None
        # While nothing has come that would have to wait, the end of the connection is to be heard.
        is_full = bool(self._rest) and not (
            is_coming or (self._may_begin() and not self._listener.is_in_line(self))
        )
        is_muted = is_full or self._listener.is_waiting(self)
        if is_muted != self._is_muted:
            self._is_muted = is_muted
            if is_muted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if is_muted or not (is_coming or self._rest):
            self._receiving_since = None
        elif self._receiving_since is None:
            self._receiving_since, self._received = self._listener.now(), 0

    def proceed(self) -> None:
        """Begin requests that have come meanwhile."""
        if self._is_ending:
            return
        if self._rest:
            self._parse_rest()
        self._after_parsing()

    # Requests

    def _begin(self, frame: Buffer, taken: int) -> None:
        """Handle a frame, which has taken so many bytes of the budget."""
        if self._sending and not self._buffered():
            # Before the request takes bytes: the client has the answers before it.
            self._sent()
        prefix = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        api = APIS[prefix[0]]
        slot = _Slot(api, taken)
        self._slots.append(slot)
        slot.task = self._listener.spawn(self._handle(api, prefix[1], frame, slot))
        self._listener.begun()

    async def _handle(self, api: Api, version: int, frame: Buffer, slot: _Slot) -> None:
        clock = self._broker.clock
        begun = clock.monotonic()
        try:
            if not api.first <= version <= api.last:
                slot.answer = unsupported_version(frame)
            else:
                head = parse_head(frame, is_flexible=api.is_request_flexible(version))
                request = api.request_decoder(version)(frame, head.end, ELEMENTS_MAX)
                if api.key != API_VERSIONS:
                    self._broker.check_ready()
                call = Call(
                    broker=self._broker,
                    version=version,
                    address=self.address,
                    fences=self._listener.fences,
                    client_id=head.client_id,
                    gateway=self._settings.gateway,
                )
                response = await api.handler(call, request)
                slot.answer = _encoded(api, version, head.correlation_id, response)
            slot.size = sum(map(len, slot.answer))
        except DecodeError as error:
            slot.is_refused = True
            self._refuse(f"{api.name}, version {version}: {error}")
        except LogError as error:
            # Handlers answer errors; this one leaves the client without an answer.
            slot.is_refused = True
            self._refuse(f"{api.name}: {error.message}", EndReason.ERROR)
        except Exception as error:
            slot.is_refused = True
            logger.exception("kafka: %s of %s failed", api.name, self.address)
            self._listener.on_broken_invariant(error)
            self._end(EndReason.ERROR)
        finally:
            self._listener.metrics.handled(
                api,
                version,
                clock.monotonic() - begun,
                bytes_in=SIZE_BYTES + len(frame),
                bytes_out=slot.size,
            )
            self._give_frame(slot)
            slot.is_done = True
            if self._transport is None:
                slot.size = 0
            else:
                if slot.size:
                    self._broker.bytes_in_flight.force_reserve(slot.size, self.address_group)
                self._flush()

    # Answers

    def _flush(self) -> None:
        """Give the next finished answers to the transport, then begin more requests."""
        slots = self._slots
        while slots and slots[0].is_done and not self._is_write_paused:
            slot = slots.popleft()
            self._is_answering = self._is_answering and not slot.is_refused
            if not self._is_answering:
                # A closing transport with something left takes more: it would stand for the answer
                # that is missing.
                self._give(slot.size)
            elif slot.answer and self._transport is not None:
                self._sending += slot.size
                self._written += slot.size
                self._transport.writelines(slot.answer)
        if not self._buffered():
            self._sent()
        self._active_at = self._listener.now()
        self.proceed()

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _sent(self) -> None:
        sending, self._sending = self._sending, 0
        self._give(sending)

    def _give_frame(self, slot: _Slot) -> None:
        taken, slot.taken = slot.taken, 0
        self._give(taken)

    def _give(self, size: int) -> None:
        if size:
            self._broker.bytes_in_flight.release(size, self.address_group)
            self._listener.room_made()

    # The end

    def _refuse(self, complaint: str, reason: EndReason = EndReason.MALFORMED) -> None:
        """The client's bytes make no sense, or there is no answer: close, as Kafka does."""
        logger.info("kafka: connection of %s closed: %s", self.address, complaint)
        self._end(reason)

    def _set_ending(self, reason: EndReason) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.end_reason = reason

    def _end(self, reason: EndReason) -> None:
        self._set_ending(reason)
        self._drop_large()
        if self._transport is not None:
            self._transport.close()

    def _drop_large(self) -> None:
        if self._large is not None:
            size, self._large = len(self._large), None
            self._give(size)

    @property
    def is_busy(self) -> bool:
        """Whether requests wait for their answers, or answers for the client."""
        return bool(self._slots or self._buffered())

    def abort(self, reason: EndReason, detail: str) -> None:
        """Cut the connection."""
        logger.info("kafka: connection of %s cut: %s", self.address, detail)
        self._set_ending(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: EndReason) -> None:
        """Close the connection; what is in the transport is sent."""
        self._end(reason)

    def stop_reading(self) -> None:
        """Begin no more requests: the listener closes."""
        self._set_ending(EndReason.STOPPING)
        if self._transport is not None and not self._is_muted:
            self._is_muted = True
            self._transport.pause_reading()

    def sweep(self, now: float) -> None:
        """Cut the connection if its client is idle, or too slow."""
        settings = self._settings
        if self._reads_too_slowly(now):
            self.abort(EndReason.SLOW_READER, "it read its answers too slowly")
        elif self._receiving_since is not None:
            taken_s = now - self._receiving_since
            is_slow = self._received < taken_s * settings.bytes_per_second_min
            if is_slow and taken_s > settings.receive_s:
                self.abort(
                    EndReason.SLOW_SENDER,
                    f"sent {self._received} bytes of a request in {taken_s:.0f} s",
                )
        elif not self.is_busy and now - self._active_at > settings.idle_s:
            self.close(EndReason.IDLE)

    def _reads_too_slowly(self, now: float) -> bool:
        """Whether the client has taken less than the minimum for too long.

        A transport below its limit never says when it is empty: what it has sent is given back to
        the budget here, and a client that reads nothing is noticed here, also after `close`.
        """
        buffered = self._buffered()
        if not buffered:
            self._reader_guard = None
            self._sent()
            return False
        settings, taken = self._settings, self._written - buffered
        if self._reader_guard is None:
            self._reader_guard = RateGuard(settings.bytes_per_second_min, settings.write_stall_s)
        else:
            self._reader_guard.moved(taken - self._taken, now - self._looked_at)
        self._looked_at, self._taken = now, taken
        return not self._reader_guard.patience_s
