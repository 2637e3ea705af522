"""The final checks of a history: every replica is read to its end and compared with the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raftlog.record.header import parse_header
from raftlog.record.types import Offset
from raftlog.replication.partition import Isolation
from tests.simulation.data.clients import Part, decode_all
from tests.simulation.data.consumers import READ_BYTES, Consumer
from tests.verification.log_checker import Kind, check, require_none
from tests.verification.log_history import ACKS_ALL, Compacted, Deletion, FinalRead, Loss, Send

if TYPE_CHECKING:
    from tests.simulation.data.data_world import DataWorld

CUT_BYTES_MAX: Final = 4_000
"""Most uncommitted bytes that a truncation may remove after retention has left enough."""
CLOCKS_MS: Final = 200
"""Between true time and a node's clock, where no clock jumps."""
LOOKUPS: Final = 8
"""Times looked up in each partition at the end."""


async def judge(data: DataWorld) -> None:
    """Read and judge, when all is healed and settled. Raises AssertionError."""
    await read_to_the_end(data)
    gone = {str(part) for part in data.gone}
    # Deleted topics cannot be read to the end.
    require_none(
        anomaly
        for anomaly in check(data.history)
        if anomaly.kind is not Kind.UNSEEN or anomaly.partition not in gone
    )


async def read_to_the_end(data: DataWorld) -> None:
    """Read each replica into the history, and compare them. Raises AssertionError."""
    for part in data.parts:
        note_retention(data, part)
        await _read_all(data, part)
        if data.lateness_s is not None:
            await _look_up(data, part)
            # More may have become too old meanwhile.
            note_retention(data, part)
    assert not data.complaints, data.complaints


def note_retention(data: DataWorld, part: Part) -> None:
    """Records deleted for lack of space count as deleted on request, up to that amount."""
    for member in map(int, data.row(part).replicas):
        replica = data.replica(member, part)
        assert replica is not None
        note_expired(data, part, int(replica.log_start_offset))
    asked = int(data.topic(part.topic).configs.get("retention.bytes", -1))
    if asked < 0:
        return
    for member in map(int, data.row(part).replicas):
        replica = data.replica(member, part)
        assert replica is not None
        start = int(replica.log_start_offset)
        if start > _deleted_before(data, part):
            assert replica.log.size_bytes + CUT_BYTES_MAX >= asked, (
                f"{part} on {member} keeps {replica.log.size_bytes} bytes of {asked}"
            )
            data.history.append(Deletion(partition=str(part), before=start))


def note_expired(data: DataWorld, part: Part, start: int) -> None:
    """Records deleted by age count as deleted on request, if they were old enough."""
    configs = data.topic(part.topic).configs
    kept_ms = int(configs.get("retention.ms", -1))
    if int(configs.get("retention.bytes", -1)) >= 0:
        # By size, perhaps: `note_retention` judges.
        return
    if data.lateness_s is None or kept_ms < 0 or start <= _deleted_before(data, part):
        return
    name = str(part)
    losses = [each for each in data.history if isinstance(each, Loss) and each.partition == name]
    for send in data.history:
        if not isinstance(send, Send) or send.partition != name or send.offset is None:
            continue
        if send.acks != ACKS_ALL:
            # Another record may have taken its place.
            continue
        for position, time_ms in enumerate(send.times):
            offset, age_ms = send.offset + position, data.time_ms() - time_ms
            if any(send.invoked < loss.step and offset >= loss.offset for loss in losses):
                continue
            assert offset >= start or age_ms >= kept_ms - CLOCKS_MS, (
                f"{part} begins at {start}: {send.values[position]!r} is gone after {age_ms} ms, "
                f"with retention.ms={kept_ms}"
            )
    data.history.append(Deletion(partition=name, before=start))


async def _look_up(data: DataWorld, part: Part) -> None:
    """Look times up, now that every answer must be right."""
    times = [
        time_ms
        for send in data.history
        if isinstance(send, Send) and send.partition == str(part)
        for time_ms in send.times
    ]
    if not times:
        return
    chance = data.world.random(f"lookups {part}")
    client = Consumer(data, "lookups", part)
    for _ in range(LOOKUPS):
        wanted = chance.choice(times) + chance.choice((0, 0, 1, -1, 500, 60_000))
        ready = [node_id for node_id in data.nodes.node_ids if data.nodes.is_ready(node_id)]
        assert await client.look_up(chance.choice(ready), wanted), (
            f"{part}: no answer to which record is the first after {wanted}"
        )


def _deleted_before(data: DataWorld, part: Part) -> int:
    name = str(part)
    deletions = (each for each in data.history if isinstance(each, Deletion))
    return max((each.before for each in deletions if each.partition == name), default=0)


async def _read_all(data: DataWorld, part: Part) -> None:
    """Read each replica to its end, and compare their bytes."""
    start = 0
    for member in map(int, data.row(part).replicas):
        data.history.append(await read_replica(data, member, part))
        replica = data.replica(member, part)
        assert replica is not None
        start = max(start, int(replica.log_start_offset))
    if part.topic in data.compacted:
        # Each replica compacts by itself, below its active segment, and may be replaced since.
        end = data.replicas.shared[data.key(part)].compacted_end
        data.history.append(Compacted(partition=str(part), end=end))
        return
    # Where old segments are deleted, a replica may keep more than it must.
    contents = {
        member: _content(data, member, part, start) for member in map(int, data.row(part).replicas)
    }
    sizes = {member: len(content) for member, content in contents.items()}
    assert len(set(contents.values())) == 1, f"{part}: the replicas differ: {sizes}"


def _content(data: DataWorld, node_id: int, part: Part, start: int) -> bytes:
    """Bytes of a replica after the last batch that ends at `start` or below."""
    replica = data.replica(node_id, part)
    assert replica is not None
    followed = data.replicas.replicas[node_id, data.key(part)]
    disk = data.world.disk(node_id)
    content = b""
    for segment in replica.log.segments.all:
        content += disk.contents(segment.path)
        # Unreachable damage is not repaired, and must not be parsed.
        written, position = followed.as_written(disk._inode(segment.path)), 0
        while position < len(written):
            header = parse_header(written, position)
            position += header.size_bytes
            if header.next_offset <= start:
                content = disk.contents(segment.path)[position:]
    return content


async def read_replica(
    data: DataWorld,
    node_id: int,
    part: Part,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> FinalRead:
    """All readable records of one replica. Raises LogError."""
    replica = data.replica(node_id, part)
    assert replica is not None
    start, end = replica.log_start_offset, replica.readable_end(isolation)
    records: list[tuple[int, str]] = []
    offset = start
    while offset < end:
        fetched = await data.nodes.call(
            node_id,
            lambda _, o=offset: replica.read(  # type: ignore[misc]
                Offset(o), max_bytes=READ_BYTES, any_replica=True, isolation=isolation
            ),
        )
        records += decode_all(fetched.data, offset, fetched.aborted)
        assert fetched.next_offset > offset, f"{part} on {node_id} ends at {offset} of {end}"
        offset = fetched.next_offset
    return FinalRead(
        partition=str(part),
        node=f"n{node_id}",
        start=int(start),
        end=int(end),
        records=tuple(records),
        is_committed=isolation is Isolation.READ_COMMITTED,
    )
