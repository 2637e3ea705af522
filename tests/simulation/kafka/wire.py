"""One connection of a simulated client: requests out, answers in, in the order of the requests.

A connection may have its end in it from the start: `Cut` names the byte of the requests or of the
answers after which it is cut, and how.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from raftlog.kafka.apis import APIS, Api
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.schema.errors import DecodeError
from tests.simulation.streams import ClientStream

How = Literal["reset", "half-close", "close", "vanish"]
READ_BYTES: Final = 1 << 16
CLIENT_ID: Final = b"c"
_BY_TYPE: Final = {api.request_type: api for api in APIS.values()}


class DisconnectedError(Exception):
    """The connection ended before the answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a connection is cut, and how."""

    how: How
    request_byte: int | None = None
    """After this byte of all requests has left."""
    answer_byte: int | None = None
    """After this byte of all answers has come."""
    is_late: bool = False
    """Requests are cut once the node has read what comes before; else at once."""


@dataclass(slots=True)
class Exchange:
    """A request and its answer."""

    api: Api
    version: int
    number: int
    """The correlation id."""
    answered: asyncio.Future[Any]
    """The answer, or DisconnectedError."""
    is_whole: bool = True
    """Whether all bytes of the request were handed over: else it must not take place."""
    has_answer: bool = True


def frame_of(request: msgspec.Struct, version: int, number: int) -> bytes:
    """A request's bytes, with its size."""
    api = _BY_TYPE[type(request)]
    head = struct.pack(">hhih", api.key, version, number, len(CLIENT_ID)) + CLIENT_ID
    if api.is_request_flexible(version):
        head += b"\0"
    body = head + codec_of(api.request_type, version).encode(request)
    return struct.pack(">i", len(body)) + body


@dataclass
class Wire:
    """One connection. `complain` takes wrong answers."""

    stream: ClientStream
    complain: Callable[[str], None]
    cut: Cut | None = None
    pace_s: float = 0.0
    """Pause before each read: a slow reader."""
    read_bytes_max: int = READ_BYTES
    sent: int = 0
    """Bytes of requests."""
    answers: bytearray = field(default_factory=bytearray)
    """All bytes of answers, if `keeps_answers`."""
    keeps_answers: bool = False
    received: int = 0
    is_over: bool = False
    exchanges: deque[Exchange] = field(default_factory=deque)
    """Not answered yet, in order."""
    _numbers: int = 0
    _data: bytearray = field(default_factory=bytearray)
    _reader: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._reader = asyncio.get_running_loop().create_task(self._read_all())

    # Requests

    def begin(self, request: msgspec.Struct, version: int, *, has_answer: bool = True) -> Exchange:
        """Send a request, without waiting. Its future fails with DisconnectedError at the end."""
        api = _BY_TYPE[type(request)]
        loop = asyncio.get_running_loop()
        exchange = Exchange(
            api, version, self._numbers, loop.create_future(), has_answer=has_answer
        )
        # Perhaps no caller waits for it.
        exchange.answered.add_done_callback(lambda one: one.cancelled() or one.exception())
        frame = frame_of(request, version, self._numbers)
        self._numbers += 1
        if self.is_over:
            exchange.is_whole = False
            exchange.answered.set_exception(DisconnectedError())
            return exchange
        if has_answer:
            self.exchanges.append(exchange)
        exchange.is_whole = self.write(frame)
        if not has_answer:
            exchange.answered.set_result(None)
        return exchange

    async def ask(self, request: msgspec.Struct, version: int) -> Any:
        """The answer to a request. Raises DisconnectedError."""
        return await self.begin(request, version).answered

    def write(self, data: bytes) -> bool:
        """Send bytes, up to the cut; whether all were sent."""
        cut = self.cut
        if cut is None or cut.request_byte is None or self.sent + len(data) <= cut.request_byte:
            self.sent += len(data)
            self.stream.write(data)
            return True
        kept = max(cut.request_byte - self.sent, 0)
        self.stream.write(data[:kept])
        self.sent += kept
        if not self.is_over:
            if cut.is_late:
                asyncio.get_running_loop().create_task(self._cut_later(cut))
            else:
                self.end(cut.how)
        return False

    async def _cut_later(self, cut: Cut) -> None:
        while not self.is_over and not self.stream.is_delivered:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.0005)
        self.end(cut.how)

    # Answers

    async def _read_all(self) -> None:
        try:
            while not self.is_over:
                if self.pace_s:
                    await asyncio.sleep(self.pace_s)
                limit = self.read_bytes_max
                cut = self.cut
                if cut is not None and cut.answer_byte is not None:
                    limit = min(limit, cut.answer_byte - self.received)
                    if limit <= 0:
                        # What follows a half-close is read.
                        self.cut = None
                        self.end(cut.how)
                        continue
                data = await self.stream.read(limit)
                if not data:
                    break
                self.received += len(data)
                if self.keeps_answers:
                    self.answers += data
                self._data += data
                self._take_frames()
        except ConnectionResetError:
            pass
        self.end("close")

    def _take_frames(self) -> None:
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        (number,) = struct.unpack_from(">i", frame)
        exchange = self.exchanges.popleft() if self.exchanges else None
        if exchange is None or exchange.number != number:
            wanted = "none" if exchange is None else f"{exchange.number} ({exchange.api.name})"
            self.complain(f"{self.stream.name}: an answer to request {number} in place of {wanted}")
            self.end("reset")
            return
        start = 5 if exchange.api.is_answer_flexible(exchange.version) else 4
        codec = exchange.api.response_codec(exchange.version)
        try:
            answer = codec.decode(frame, start, ELEMENTS_MAX)
        except DecodeError as error:
            self.complain(f"{self.stream.name}: the answer of {exchange.api.name}: {error}")
            self.end("reset")
            return
        if not exchange.answered.done():
            exchange.answered.set_result(answer)

    # The end

    def end(self, how: How) -> None:
        """End the connection; requests without an answer fail. Half-closed, it is read on."""
        if self.is_over:
            return
        if how == "half-close":
            self.stream.half_close()
            return
        self.is_over = True
        {"reset": self.stream.reset, "close": self.stream.close, "vanish": self.stream.vanish}[
            how
        ]()
        self._reader.cancel()
        exchanges, self.exchanges = self.exchanges, deque()
        for exchange in exchanges:
            if not exchange.answered.done():
                exchange.answered.set_exception(DisconnectedError())
