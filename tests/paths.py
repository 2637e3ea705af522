"""The functions on the path of a Kafka produce, from its frame to the file's write.

`python -m tests.paths` lists the functions and marks those that carry the record. Both counts are
taken on a warm single node in this process:

- *Called*: the distinct functions of the product that are called between the arrival of the frame's
  bytes (`Connection.buffer_updated`) and the write of the batch (`FileSystemFile.append`).
- *Carrying*: the called functions that receive the record batch as an argument, by itself or in a
  frame, a message or a sequence of batches, and pass it on. They stand on the call stack of the
  write, or of the start of the task that writes, or return the batch in another form. Functions
  that only look at the batch, as a check of its length does, carry nothing.

Only the functions common to all measured requests count. Other tasks may run during one of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Final, NamedTuple

import msgspec

import raftlog
from raftlog.kafka.apis import APIS
from raftlog.kafka.listener import Connection, KafkaListener
from raftlog.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from raftlog.node.ports import take_ports
from raftlog.node.process import Node
from raftlog.node.settings import NodeSettings
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.schema.codec import codec_of
from raftlog.world.randomness import SystemRandomness
from raftlog.world.real_disk import FileSystemDisk, FileSystemFile
from raftlog.world.time import SystemClock

PRODUCE: Final = 0
VERSION: Final = 9
TOPIC: Final = "paths"
VALUE: Final = b"the record whose way is traced"
WARM_UP: Final = 5
MEASURED: Final = 5
DEPTH_MAX: Final = 5
DEADLINE_S: Final = 30.0
PRODUCT: Final = str(Path(raftlog.__file__).parent)


class Way(NamedTuple):
    """The functions on the way, in the order of their first calls."""

    called: tuple[str, ...]
    carrying: frozenset[str]


class _Tracer:
    """Notes product functions from the arrival of a frame to the write of a file."""

    def __init__(self) -> None:
        self.called: dict[str, bool] = {}
        """Whether each function receives the record, in the order of first calls."""
        self.carrying: set[str] = set()
        self.is_on = False
        self.is_over = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if self.is_over or not code.co_filename.startswith(PRODUCT):
            return
        if event == "call":
            self._called(frame, code)
        elif event == "return" and self.is_on:
            self._returned(_name(code), argument)

    def _called(self, frame: FrameType, code: CodeType) -> None:
        if code is _FIRST:
            self.is_on = True
        if not self.is_on:
            return
        name = _name(code)
        self.called[name] = self.called.get(name, False) or _receives(frame)
        if code is _HANDED_ON or code is _LAST:
            self._note_stack(frame)
        if code is _LAST and self.called[name]:
            self.is_over = True

    def _returned(self, name: str, value: object) -> None:
        if isinstance(value, CoroutineType):
            # The call of the next function, still to be awaited.
            value = list(value.cr_frame.f_locals.values())
        if self.called.get(name) and _holds(value, DEPTH_MAX):
            self.carrying.add(name)

    def _note_stack(self, top: FrameType) -> None:
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename.startswith(PRODUCT):
                name = _name(frame.f_code)
                if self.called.get(name):
                    self.carrying.add(name)
            frame = frame.f_back


_FIRST: Final = Connection.buffer_updated.__code__
_HANDED_ON: Final = KafkaListener.spawn.__code__
"""Starts the task that writes."""
_LAST: Final = FileSystemFile.append.__code__


def _name(code: CodeType) -> str:
    module = Path(code.co_filename).relative_to(PRODUCT)
    return f"{module}:{code.co_qualname}"


def _receives(frame: FrameType) -> bool:
    """Whether an argument holds the record."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    names = code.co_varnames[:count]
    return any(
        _holds(frame.f_locals[name], DEPTH_MAX)
        for name in names
        if name in frame.f_locals and name != "self"
    )


def _holds(value: object, depth: int) -> bool:
    """Whether the value holds the record's bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return VALUE in bytes(value)
    if depth == 0:
        return False
    return any(_holds(part, depth - 1) for part in _parts(value))


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.astuple(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in dataclasses.fields(value))
    return ()


@asynccontextmanager
async def _node(directory: Path) -> AsyncIterator[Node]:
    def on_fatal(reason: str) -> None:
        raise AssertionError(reason)

    settings = NodeSettings(
        data_dir=str(directory), listen="127.0.0.1:0", kafka_listen="127.0.0.1:0"
    )
    ports = await take_ports(settings)
    disk = FileSystemDisk(settings.data_dir)
    node = await Node.start(
        settings,
        ports,
        disk,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        on_fatal=on_fatal,
    )
    try:
        yield node
    finally:
        await node.stop()
        disk.close()


def _frame(number: int) -> bytes:
    api = APIS[PRODUCE]
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    builder.append(1_700_000_000_000, b"key", VALUE)
    partition = PartitionProduceData(0, builder.build())
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=(TopicProduceData(TOPIC, partition_data=(partition,)),),
    )
    head = struct.pack(">hhih", PRODUCE, VERSION, number, 1) + b"c"
    if api.is_request_flexible(VERSION):
        head += b"\0"
    body = head + codec_of(api.request_type, VERSION).encode(request)
    return struct.pack(">i", len(body)) + body


async def _produced(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
) -> None:
    writer.write(_frame(number))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)


async def _traced(directory: Path) -> Way:
    tracers: list[_Tracer] = []
    async with asyncio.timeout(DEADLINE_S), _node(directory) as node:
        await node.core.services.metadata.create_topic(TOPIC, partitions=1)
        address = node.kafka_address
        assert address is not None
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(WARM_UP):
            await _produced(reader, writer, number)
        for number in range(MEASURED):
            tracer = _Tracer()
            sys.setprofile(tracer)
            try:
                await _produced(reader, writer, WARM_UP + number)
            finally:
                sys.setprofile(None)
            assert tracer.is_over, "the batch was written"
            tracers.append(tracer)
        writer.close()
    common = set.intersection(*(set(one.called) for one in tracers))
    first = tracers[0].called
    return Way(
        tuple(name for name in first if name in common),
        frozenset(name for name in common if any(name in one.carrying for one in tracers)),
    )


def way() -> Way:
    """The way of a warm Kafka produce on one node."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_traced(Path(directory)))


def main() -> None:
    """Print the functions on the way; `*` marks those that carry the record."""
    found = way()
    lines = [f"{'*' if name in found.carrying else ' '} {name}" for name in found.called]
    lines.append(f"{len(found.called)} functions, {len(found.carrying)} carry the record")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
