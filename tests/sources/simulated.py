"""One partition of simulated nodes: its voters are other nodes, so each replica may die."""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks, Partition
from tests.simulation.data.clients import ask, encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part
from tests.verification.log_history import Outcome

T: Final = Part("t", 0)
REPLICAS: Final = (4, 5, 6)
"""Beside the voters 1 to 3."""
NODES: Final = 6
WAIT_S: Final = 10.0
"""In virtual time."""
REFUSED_S: Final = 0.5


def replica(data: DataWorld, node_id: int) -> Partition:
    """The replica of a running node."""
    found = data.replica(node_id, T)
    assert found is not None
    return found


async def known_as_committed(data: DataWorld, end: int, *node_ids: int) -> None:
    """Wait until these replicas know that all records below `end` are committed.

    A leader below min.insync.replicas shows no record that it does not know to be committed.
    """
    await data.nodes.until(
        lambda: all(replica(data, node_id).high_watermark >= end for node_id in node_ids)
    )


async def read_values(data: DataWorld, node_id: int, end: int) -> list[str]:
    """The values of all records below `end`, by this node's own replica."""
    reader = Consumer(data, f"reader {data.step()}", T)
    reader.seek(0)
    values: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while reader.position < end:
            pairs = await reader.poll(node_id, near=True)
            values += [value for _, value in pairs or ()]
            await asyncio.sleep(0.01)
    return values


async def send(
    data: DataWorld, node_id: int, *, acks: Acks = Acks.ALL, within_s: float = REFUSED_S
) -> Outcome:
    """Send one record to this node alone, without retries; return the outcome."""
    producer = data.producer(f"p{data.step()}", acks=acks, idempotent=False, repeats=False)
    sent = await producer.send(T, node=node_id, within_s=within_s)
    assert sent is not None
    return sent.outcome


async def refusal(data: DataWorld, node_id: int) -> LogError:
    """The error of an append with acks=all at this node. AssertionError: the node appended."""
    try:
        await ask(
            data,
            node_id,
            lambda core: core.services.replicas.partition("t", 0).append(
                encode(["refused"]), acks=Acks.ALL, timeout_s=REFUSED_S
            ),
        )
    except LogError as error:
        return error
    raise AssertionError(f"node {node_id} appended")


async def write_numbered(data: DataWorld, count: int = 3) -> list[str]:
    """Write one batch with acks=all; return its values."""
    return list((await data.write(T, count)).values)
