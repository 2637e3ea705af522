"""Finds the cluster of a joining node, by a hello to any live node.

Request and response are hellos, on a separate channel, as a joining node is no peer yet. The called
node makes the same checks as for a member, so that a wrong id or a wiped disk is reported before
the node starts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from raftlog.peer.hello import encode_hello, is_passing
from raftlog.raft.peers.hello import QuorumHello, check_hello, decode_quorum_hello
from raftlog.record.errors import ERROR_TABLE, ILLEGAL_STATE, NOT_READY, LogError
from raftlog.world import Backoff, Clock
from raftlog.world.network import (
    Connection,
    Network,
    NetworkError,
    Receiver,
    RefusedError,
    RejectedError,
)

JOIN_CHANNEL: Final = "join"
JOIN_ADDRESSES_MAX: Final = 64
JOIN_TIMEOUT_S: Final = 2.0
"""Seconds for one node. Then comes the next address."""
JOIN_PAUSES: Final = Backoff(0.2, 2.0)
"""Pauses between rounds over all addresses."""
JOINERS_MAX: Final = 64
"""Open connections of joining nodes. The caller ends each. Above it, the oldest are closed."""


logger = logging.getLogger(__name__)


def join_hello(hello: QuorumHello) -> QuorumHello:
    """A member's hello, for the channel on which nodes find their cluster."""
    return msgspec.structs.replace(hello, channel=JOIN_CHANNEL)


class _Silent:
    """`Receiver` of a connection without messages after the hellos."""

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        self._ended = ended

    def received(self, message: bytes) -> None:
        """Ignore the message."""

    def closed(self) -> None:
        """Forget the connection."""
        if self._ended is not None:
            self._ended()


class JoinAcceptor:
    """`Acceptor` of joining nodes."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._open: deque[Connection] = deque()

    def hello(self, hello: bytes) -> bytes:
        """This node's hello. Raises RejectedError."""
        return self._answer(hello)

    def opened(self, connection: Connection) -> Receiver:
        """Keep the connection until the caller has read the response and ends the connection."""
        if len(self._open) >= JOINERS_MAX:
            self._open.popleft().close()
        self._open.append(connection)
        return _Silent(lambda: self._forget(connection))

    def close(self) -> None:
        """End all connections."""
        while self._open:
            self._open.popleft().close()

    def _forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)


async def find_cluster(
    network: Network,
    addresses: Sequence[str],
    hello: QuorumHello,
    *,
    clock: Clock,
    timeout_s: float,
) -> QuorumHello:
    """Call the nodes at `addresses`, in turns, until one knows its cluster's id and voters.

    Returns the node's hello. Raises LogError. If every address responds with a proven rejection
    that time will not lift, the error comes at once, with the code and message of the first
    rejection. After `timeout_s` it is NOT_READY, with the outcome of each address.
    """
    assert 0 < len(addresses) <= JOIN_ADDRESSES_MAX
    deadline = clock.monotonic() + timeout_s
    outcomes: dict[str, str] = {}
    rounds = 0
    while True:
        final: list[RejectedError] = []
        for address in addresses:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                break
            try:
                return await _call(network, address, hello, min(left_s, JOIN_TIMEOUT_S))
            except RefusedError:
                outcome = "connection refused"
            except NetworkError as error:
                outcome = str(error)
            except RejectedError as error:
                outcome = error.message
                if not is_passing(error):
                    final.append(error)
            if outcomes.get(address) != outcome:
                outcomes[address] = outcome
                logger.warning("cannot join the cluster by %s yet: %s", address, outcome)
        if len(final) == len(addresses):
            raise LogError(ERROR_TABLE.get(final[0].code, ILLEGAL_STATE), final[0].message)
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            all_outcomes = "; ".join(
                f"{address}: {outcome}" for address, outcome in outcomes.items()
            )
            raise LogError(
                NOT_READY, f"No node of the cluster answered within {timeout_s:g} s. {all_outcomes}"
            )
        await clock.sleep(min(left_s, JOIN_PAUSES.delay_s(rounds)))
        rounds += 1


async def _call(
    network: Network, address: str, hello: QuorumHello, timeout_s: float
) -> QuorumHello:
    """Call one node and return its hello. Raises RejectedError, NetworkError."""
    answers: list[QuorumHello] = []
    connections: list[Connection] = []

    def opened(connection: Connection) -> Receiver:
        theirs = decode_quorum_hello(connection.hello, JOIN_CHANNEL)
        check_hello(hello, theirs, None)
        if theirs.cluster_id is None or not theirs.voters.voters:
            raise RejectedError(
                NOT_READY.code, f"Node {theirs.node_id} does not know its cluster itself yet."
            )
        answers.append(theirs)
        connections.append(connection)
        return _Silent()

    await network.connect(
        address, JOIN_CHANNEL, encode_hello(join_hello(hello)), opened, timeout_s=timeout_s
    )
    connections[0].close()
    return answers[0]
