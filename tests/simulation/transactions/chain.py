"""Read, process, write: exactly once, from an input partition to an output topic.

Incarnations of one transactional id take turns, or meet. Each transaction reads the group's
committed offset and the input from there on, writes one output for each record, and commits the
next offset with them. So every input has one committed output below the group's offset, and none
above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.broker.authorize import ANONYMOUS
from raftlog.broker.groups import Committer, OffsetToCommit, OpenTransaction
from raftlog.broker.service import Broker
from raftlog.coordinator.shard.decision import Producer
from raftlog.record.errors import ERROR_TABLE, LogError
from raftlog.record.types import Offset
from raftlog.replication.partition import Isolation
from tests.simulation.data.clients import Part, decode_all
from tests.simulation.transactions.clients import Incarnation, Record, Value
from tests.verification.log_history import Pairs
from tests.verification.transaction_history import Processed

GROUP: Final = "chain"
INPUT: Final = Part("input", 0)
OUTPUTS: Final = tuple(Part("output", number) for number in range(2))
INPUT_BYTES: Final = 400
"""Of one transaction, at most: some records."""


@dataclass
class ChainIncarnation(Incarnation):
    """One processor."""

    _following: int | None = None
    """The next offset of the input after this transaction; None without input."""

    async def _write_all(self, record: Record) -> bool:
        """Process some input; False without any, and after a failure."""
        self._following = None
        start = await self._committed()
        following, taken = await self._insist(lambda broker: self._read(broker, start))
        if following == start:
            return False
        self._following = following
        values: dict[Part, list[Value]] = {}
        for offset, value in taken:
            values.setdefault(OUTPUTS[offset % len(OUTPUTS)], []).append(
                (f"{record.name}>{value}", "")
            )
        if not await self._write_batches(record, values.items()):
            return False
        await self._insist(lambda broker: self._commit_offset(broker, self.producer))
        record.processed = (Processed(GROUP, str(INPUT), start, following),)
        return True

    async def _committed(self) -> int:
        """The group's offset, once no transaction may change it."""
        invoked = self.history.data.step()
        offset = await self._insist(committed_offset)
        self.history.note_offset(GROUP, INPUT, invoked, offset)
        return offset

    async def _read(self, broker: Broker, start: int) -> tuple[int, Pairs]:
        handle = broker.fetch.partition(ANONYMOUS, INPUT.topic, INPUT.number)
        fetched = await handle.read(
            Offset(start), max_bytes=INPUT_BYTES, isolation=Isolation.READ_COMMITTED
        )
        return int(fetched.next_offset), decode_all(fetched.data, start, fetched.aborted)

    async def _commit_offset(self, broker: Broker, producer: Producer) -> None:
        assert self._following is not None
        (outcome,) = await broker.groups.commit(
            ANONYMOUS,
            GROUP,
            [OffsetToCommit(INPUT.topic, INPUT.number, self._following)],
            Committer(),
            OpenTransaction(self.transactional_id, producer),
        )
        if outcome.error_code:
            raise LogError(ERROR_TABLE[outcome.error_code], "the offset was not committed")

    def _echo_kinds(self, *, is_commit: bool) -> list[str]:
        kinds = super()._echo_kinds(is_commit=is_commit)
        return kinds if self._following is None else [*kinds, "offset", "offset"]

    async def _echo(self, kind: str, record: Record, session: str, *, is_commit: bool) -> None:
        if kind != "offset":
            await super()._echo(kind, record, session, is_commit=is_commit)
            return
        await self.history.ask(
            self.chance, lambda broker: self._commit_offset(broker, self.producer)
        )


async def committed_offset(broker: Broker) -> int:
    """The group's offset; 0 before the first commit. Raises LogError UNSTABLE_OFFSET_COMMIT."""
    (found,) = await broker.groups.committed(
        ANONYMOUS, GROUP, {INPUT.topic: [INPUT.number]}, require_stable=True
    )
    if found.error_code:
        raise LogError(ERROR_TABLE[found.error_code], "the offset is not readable")
    return max(found.offset, 0)


def judge(offset: int, inputs: Pairs, outputs: Iterable[str]) -> None:
    """Every input below the group's offset has one output, and no other has any."""
    counts = Counter(value.partition(">")[2] for value in outputs if ">" in value)
    expected = Counter({value: 1 for at, value in inputs if at < offset})
    missing, more = expected - counts, counts - expected
    assert not missing, f"processed up to {offset}, without the output of {sorted(missing)}"
    assert not more, f"processed up to {offset}, with too many outputs of {dict(more)}"
