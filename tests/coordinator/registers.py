"""A small coordinator for tests of the shell: counters, and each client's last operation.

An increment makes two records: the counter's, with the operation's name, and the client's, by
which a repeat is recognized and an older one refused. A client that is silent for SESSION_MS is
forgotten, unless its name begins with KEPT.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Producer, Timers
from raftlog.coordinator.shard.messages import Messages
from raftlog.coordinator.shard.records import OffsetCommitKey, OffsetCommitValue
from raftlog.coordinator.shard.shard import Kind, Moment, Shard
from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import ProducerEpoch, ProducerId

TOPIC: Final = "__registers"
NAME: Final = "register"
SESSION_MS: Final = 10_000
KEPT: Final = "kept"
REGISTER: Final = 0
REGISTER_CHARACTERS_MAX: Final = 100
CLIENT: Final = 1


class Increment(msgspec.Struct, frozen=True, tag=1):
    """Add 1; a repeat of the client's last operation gets the same response."""

    register: Annotated[str, Meta(max_length=REGISTER_CHARACTERS_MAX)]
    client: str
    operation: str
    """With its number behind the last slash, if older ones are to be refused."""


class Get(msgspec.Struct, frozen=True, tag=2):
    """Read a counter."""

    register: str


class Await(msgspec.Struct, frozen=True, tag=3):
    """Wait until a counter has reached a value, then read."""

    register: str
    value: int
    timeout_ms: int


Request: TypeAlias = Increment | Get | Await


class Response(msgspec.Struct, frozen=True):
    """A counter's value, and the offset of the newest record that it depends on."""

    value: int
    position: int


class Registers:
    """The state machine."""

    def __init__(self, on_changed: Callable[[Hashable], None] = lambda _: None) -> None:
        self.values: dict[str, tuple[int, str, int]] = {}
        """Value, the operation that set it, the record's offset."""
        self.clients: dict[str, tuple[str, int, int]] = {}
        """Last operation, its response, the record's offset."""
        self.placed: dict[str, int] = {}
        """The offset of each operation's record."""
        self.markers: list[tuple[int, int, bool, int]] = []
        self.transactional: list[tuple[int, Producer]] = []
        self.timers: Timers[str] = Timers()
        self._on_changed = on_changed

    def content(self) -> Any:
        """All but the timers."""
        return self.values, self.clients, self.markers, self.transactional

    def increment(self, request: Increment, moment: Moment) -> Decision[Response]:
        if request.register == "refused":
            raise LogError(ILLEGAL_STATE, "no such register")
        self._set_timer(request.client, moment)
        last = self.clients.get(request.client)
        if last is not None and last[0] == request.operation:
            return Decision(Response(last[1], last[2]))
        if last is not None and _number(last[0]) > _number(request.operation):
            raise LogError(ILLEGAL_STATE, "an older operation")
        before = self.values.get(request.register, (0, "", -1))
        value = before[0] + 1
        records = (
            record(REGISTER, request.register, value, request.operation),
            record(CLIENT, request.client, value, request.operation),
        )
        return Decision(Response(value, before[2]), records)

    def get(self, request: Get) -> Response:
        value, _, position = self.values.get(request.register, (0, "", -1))
        return Response(value, position)

    def replay(
        self, record: CoordinatorRecord, *, position: int, producer: Producer | None
    ) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        if producer is not None:
            self.transactional.append((position, producer))
        name, value = record.key.group, record.value
        table = self.values if record.key.partition == REGISTER else self.clients
        if value is None:
            table.pop(name, None)  # type: ignore[attr-defined]
            return
        assert isinstance(value, OffsetCommitValue)
        if record.key.partition == REGISTER:
            self.values[name] = (value.offset, value.metadata, position)
            self.placed[value.metadata] = position
        else:
            self.clients[name] = (value.metadata, value.offset, position)
        self._on_changed(name)

    def replay_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        committed: bool,
        position: int,
    ) -> None:
        self.markers.append((producer_id, producer_epoch, committed, position))

    def loaded(self, moment: Moment) -> None:
        for client in self.clients:
            self._set_timer(client, moment)

    def _set_timer(self, client: str, moment: Moment) -> None:
        if not client.startswith(KEPT):
            self.timers.set(client, moment.now_ms + SESSION_MS)

    def expire(self, client: str, _moment: Moment) -> Decision[None]:
        if client not in self.clients:
            return Decision(None)
        return Decision(None, (record(CLIENT, client, None),))


def _number(operation: str) -> int:
    number = operation.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


RegisterShard: TypeAlias = Shard[Registers, str]


def record(kind: int, name: str, value: int | None, operation: str = "") -> CoordinatorRecord:
    key = OffsetCommitKey(name, "registers", kind)
    if value is None:
        return CoordinatorRecord(key, None)
    return CoordinatorRecord(key, OffsetCommitValue(value, -1, operation, 0))


_key = msgspec.msgpack.Decoder(OffsetCommitKey)
_value = msgspec.msgpack.Decoder(OffsetCommitValue)
_encode = msgspec.msgpack.Encoder().encode


def encode_record(one: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    return _encode(one.key), None if one.value is None else _encode(one.value)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    if key.startswith(b"unknown"):
        return None
    return CoordinatorRecord(_key.decode(key), None if value is None else _value.decode(value))


MESSAGES: Final[Messages[Request, Response]] = Messages.of(NAME, Request, Response)


async def carry_out(shard: RegisterShard, request: Request) -> Response:
    match request:
        case Increment():
            return await shard.execute(lambda state: state.increment(request, shard.moment()))
        case Get():
            return await shard.query(lambda state: state.get(request))
        case Await():
            wanted = Get(request.register)
            await shard.wait_until(
                (request.register,),
                lambda state: state.get(wanted).value >= request.value,
                request.timeout_ms / 1000,
            )
            return await shard.query(lambda state: state.get(wanted))


class RegisterKind(Kind[Registers, str, Request, Response]):
    name = NAME
    topic = TOPIC
    messages = MESSAGES

    def create(self, changed: Callable[[Hashable], None]) -> Registers:
        return Registers(changed)

    def timers(self, state: Registers) -> Timers[str]:
        return state.timers

    def loaded(self, state: Registers, moment: Moment) -> None:
        state.loaded(moment)

    def follow_settings(self, state: Registers, settings: Mapping[str, str]) -> None:
        pass

    async def handle(self, shard: RegisterShard, request: Request) -> Response:
        return await carry_out(shard, request)

    def expire(self, state: Registers, key: str, moment: Moment) -> Decision[object]:
        return state.expire(key, moment)

    def refused(self, state: Registers, decision: Decision[object], moment: Moment) -> None:
        state.loaded(moment)

    def encode_record(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode_record(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode_record(key, value)


KIND: Final = RegisterKind()
