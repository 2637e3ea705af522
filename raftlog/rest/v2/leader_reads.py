"""A node reads an instance's partitions one after the other at their leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from raftlog.broker.consumer_instances import Pair, PartitionMove
from raftlog.broker.fetch import PartitionHandle, ReadProgress
from raftlog.broker.offsets import NamedOffset, named_offset
from raftlog.http.request import Request, ServerContext
from raftlog.record.errors import NO_LEADER, LogError
from raftlog.record.types import Offset
from raftlog.rest.json.records import RecordFormat
from raftlog.rest.json.records_answer import RecordsAnswer
from raftlog.rest.v2.instance_reads import PARTITION_S, Plan, ReadBounds, ReadPart, Room, unreadable

Part = ReadPart[PartitionHandle]


class LeaderSource:
    """The partitions of one read, at their leaders."""

    def __init__(self, request: Request, context: ServerContext, bounds: ReadBounds) -> None:
        self._request = request
        self._context = context
        self._broker = context.broker
        self._bounds = bounds
        self._instance = (request.path_parameters["group"], request.path_parameters["instance"])

    async def begin(
        self, formats: Sequence[str], *, is_first: bool, wait_s: float
    ) -> tuple[Plan, list[Part]]:
        """Positions by the coordinator. Raises LogError."""
        found = await self._broker.consumer_instances.begin_read(
            self._request.principal, *self._instance, formats, is_first=is_first, max_wait_s=wait_s
        )
        return found.plan, [
            Part(
                planned.handle, f"{planned.handle.topic}-{planned.handle.partition}", planned.offset
            )
            for planned in found.partitions
        ]

    async def read(
        self, parts: Sequence[Part], plan: Plan, room: Room, deadline: float
    ) -> AsyncGenerator[tuple[Part, LogError | None]]:
        """Read each partition once, until there is no room."""
        for part in parts:
            if room.is_full:
                return
            try:
                # Records read before the timeout are returned.
                async with asyncio.timeout(PARTITION_S):
                    await self._read_part(part, plan, room)
            except TimeoutError:
                yield part, LogError(NO_LEADER, f"{part.name} could not be read in time.")
                if self._broker.clock.monotonic() >= deadline:
                    # The next read takes the other partitions before this partition.
                    return
            except LogError as error:
                yield part, error
            else:
                yield part, None

    async def wait(self, parts: Sequence[Part], timeout_s: float) -> None:
        """Wait at the leaders for more."""
        await self._broker.fetch.wait(
            [(part.place, Offset(part.offset)) for part in parts],
            timeout_s=timeout_s,
            isolation=self._bounds.isolation,
        )

    async def end(self, moved: Sequence[Part], last: Sequence[Part]) -> set[Part]:
        """Move positions at the coordinator and count the returned bytes."""
        moves = [
            PartitionMove(*_pair(part), part.planned, part.offset, part.reset_to) for part in moved
        ]
        pairs = await self._broker.consumer_instances.end_read(
            self._request.principal, *self._instance, moves, map(_pair, last)
        )
        lost = {part for part in moved if _pair(part) in pairs}
        for part in moved:
            size_bytes = sum(map(len, part.pieces))
            if part in lost:
                self._context.free(self._request, size_bytes)
            else:
                self._broker.topics.topic(part.place.topic).bytes_out += size_bytes
        return lost

    async def _read_part(self, part: Part, plan: Plan, room: Room) -> None:
        """Read the records of a partition while there is room."""
        target, isolation = NamedOffset(plan.auto_offset_reset), self._bounds.isolation
        await part.read(
            lambda: named_offset(target, part.place, isolation),
            lambda: self._records(part, plan.format, room),
        )

    async def _records(self, part: Part, record_format: str, room: Room) -> None:
        self._broker.topics.topic(part.place.topic).fetch_requests += 1
        progress = ReadProgress(Offset(part.offset), None)
        answer = RecordsAnswer(
            self._request,
            self._context,
            part.place,
            progress,
            RecordFormat(record_format),
            records_max=room.records_max - room.count,
            bytes_max=room.bytes_max - room.size_bytes,
            is_exact=True,
            min_one=room.count == 0,
        )
        try:
            await self._broker.fetch.read(
                part.place,
                progress,
                answer.take,
                max_bytes=room.bytes_max,
                timeout_s=0.0,
                isolation=self._bounds.isolation,
            )
        except LogError as error:
            raise unreadable(error, record_format) from None
        finally:
            part.offset = progress.offset
            part.pieces += answer.pieces
            room.count += progress.count
            room.size_bytes += answer.size_bytes
            room.is_cut = room.is_cut or answer.is_cut


def _pair(part: Part) -> Pair:
    return part.place.topic_id, part.place.partition
