"""A request goes by HTTP to any node of a cluster, with the safe retries.

All clusters share one session of kept connections, bounded in number and closed when idle. A `Link`
is no more than the addresses of a cluster, the address used last in front.

A request continues with the next address if it certainly had no effect, because nothing was sent or
the node returned NOT_READY. After a broken connection only a repeatable request continues. Any
other request ends with an unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
import msgspec
from yarl import URL

from raftlog.api.common import ErrorBody
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import (
    ERROR_TABLE,
    INTERNAL,
    NO_LEADER,
    NOT_READY,
    RETRIABLE,
    ErrorEntry,
    LogError,
)

T = TypeVar("T")

CONNECT_S: Final = 2.0
"""Seconds to connect. A node is unreachable after that."""
CALL_S: Final = 10.0
"""Timeout of a request over all addresses, in seconds. A long poll's time is added."""
ATTEMPT_S: Final = 5.0
"""Seconds of that for one address, if the request may continue with another address."""
KEEP_ALIVE_S: Final = 30.0
"""Seconds below the nodes' own limit (75 s), so requests avoid connections just closed."""
CONNECTIONS_MAX: Final = 4_096
"""Connections over all clusters. With none free for CONNECT_S, the cluster is unreachable."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a response, twice a node's own bound of a read. A larger response is rejected."""
ATTEMPTS_MAX: Final = 8
"""Addresses tried by one request."""
_ERROR_STATUS_MIN: Final = 400

_error_decoder = msgspec.json.Decoder(ErrorBody)


@dataclass(frozen=True, slots=True)
class Reply:
    """A node's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_error(self) -> bool:
        """Whether the node rejected the request."""
        return self.status >= _ERROR_STATUS_MIN

    def error(self) -> LogError:
        """The node's error, to raise in this process. `body` has the original."""
        try:
            found = _error_decoder.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return LogError(INTERNAL, f"A node returned {self.status} without an error's body.")
        return LogError(ERROR_TABLE.get(found.error_code, INTERNAL), found.message)


@dataclass(slots=True)
class LinkCounters:
    """Requests to clusters."""

    answered: int = 0
    failed: int = 0
    """Requests broken or late, whose outcome may be unknown."""
    unreachable: int = 0


class Links:
    """The connections of one process to all clusters."""

    def __init__(self) -> None:
        self.counters = LinkCounters()
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Make the session, inside its event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "raftlog-gateway", "Accept-Encoding": "identity"},
            auto_decompress=False,
            skip_auto_headers=("Content-Type", "Accept"),
        )
        # aiohttp would repeat a DELETE if a kept connection breaks. `Link` decides instead.
        self._session._retry_connection = False

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(
        self,
        address: str,
        method: str,
        target: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        hold: Callable[[int], None] | None,
    ) -> Reply:
        """One request to one node. Raises aiohttp.ClientError, OSError, TimeoutError, LogError."""
        assert self._session is not None, "the links are not started"
        async with self._session.request(
            method,
            URL(f"http://{address}{target}", encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=timeout_s, connect=CONNECT_S, sock_connect=CONNECT_S
            ),
        ) as response:
            chunks: list[bytes] = []
            size_bytes = 0
            async for chunk in response.content.iter_any():
                size_bytes += len(chunk)
                if size_bytes > ANSWER_BYTES_MAX:
                    raise LogError(
                        INTERNAL, f"{address} returned more than {ANSWER_BYTES_MAX} bytes."
                    )
                if hold is not None:
                    hold(len(chunk))
                chunks.append(chunk)
            return Reply(response.status, response.headers, b"".join(chunks))


class Link:
    """One cluster, as its addresses, the address used last in front."""

    def __init__(
        self, links: Links, name: str, addresses: Sequence[str], unreachable: ErrorEntry = NO_LEADER
    ) -> None:
        """`name` is for messages, `unreachable` the error if no address can be reached."""
        self.name = name
        self._links = links
        self._addresses = tuple(addresses)
        self._unreachable = unreachable

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes of the cluster."""
        return self._addresses

    def replace_addresses(self, addresses: Sequence[str]) -> None:
        """Use other addresses. An address in use stays the first."""
        if set(addresses) != set(self._addresses):
            first = [address for address in self._addresses[:1] if address in addresses]
            self._addresses = tuple(dict.fromkeys((*first, *addresses)))

    async def send(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        may_repeat: bool = False,
        hold: Callable[[int], None] | None = None,
    ) -> Reply:
        """The first response of any node, an error included.

        `wait_s` is the time for which the cluster may delay the response. `hold` counts each chunk
        on arrival. Raises LogError `unreachable`, with no effect, or RETRIABLE, with an unknown
        outcome, unless `may_repeat`. Raises the errors of `hold`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s + CALL_S
        attempt_s = wait_s + (ATTEMPT_S if may_repeat else CALL_S)
        counters = self._links.counters
        failures: list[str] = []
        refusal: Reply | None = None
        for address in self._addresses[:ATTEMPTS_MAX]:
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                break
            try:
                reply = await self._links.send(
                    address,
                    method,
                    target,
                    body=body,
                    headers=headers or {},
                    timeout_s=min(attempt_s, remaining_s),
                    hold=hold,
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                counters.unreachable += 1
                failures.append(f"{address}: {_reason(error)}")
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                counters.failed += 1
                failures.append(f"{address}: {_reason(error)}")
                if may_repeat:
                    continue
                raise LogError(
                    RETRIABLE,
                    f"The outcome is unknown: {self.name} did not respond ({failures[-1]}).",
                ) from error
            if reply.status == NOT_READY.http_status and reply.error().entry is NOT_READY:
                refusal = reply
                continue
            counters.answered += 1
            self._prefer(address)
            return reply
        if refusal is not None:
            return refusal
        tried = "; ".join(failures) or "it has no address in the catalog"
        raise LogError(self._unreachable, f"{self.name} cannot be reached ({tried}). Try again.")

    async def call(
        self,
        method: str,
        target: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        wait_s: float = 0.0,
        may_repeat: bool = False,
    ) -> T:
        """Send a JSON request. Returns its response of type `kind`.

        Raises the node's LogError, and the errors of `send`.
        """
        reply = await self.send(
            method,
            target,
            body=None if body is None else msgspec.json.encode(body),
            headers={} if body is None else {"Content-Type": "application/json"},
            wait_s=wait_s,
            may_repeat=may_repeat,
        )
        if reply.is_error:
            raise reply.error()
        try:
            return json_decoder(kind).decode(reply.body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogError(INTERNAL, f"{self.name} returned another shape: {error}") from error

    def _prefer(self, address: str) -> None:
        if address != self._addresses[0] and address in self._addresses:
            others = [other for other in self._addresses if other != address]
            self._addresses = (address, *others)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
