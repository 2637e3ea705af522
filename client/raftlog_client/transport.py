"""HTTP to the nodes over kept connections, without retries or routing.

Every failure is raised as a `ServerError` (the node's response) or a `ConnectionLostError`. Its
`outcome_unknown` shows whether the request may have reached a node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from errno import errorcode
from os import strerror
from typing import Final, NewType, Self, TypeAlias, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from raftlog.api.common import ErrorBody
from raftlog.api.records import ProduceResults
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import quoted
from raftlog.record.frames import BATCHES_MEDIA_TYPE
from raftlog_client.errors import ConnectionLostError, RaftlogClientError, server_error

T = TypeVar("T")

NodeAddress = NewType("NodeAddress", str)
"""`host:port` of a node."""
Part: TypeAlias = bytes | bytearray | memoryview

JSON_TYPE: Final = "application/json"
PORT_DEFAULT: Final = 8082
CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds without an accepted connection after which a node counts as unreachable."""
KEEP_ALIVE_S: Final = 30.0
"""Seconds until the client closes an idle connection, below the nodes' limit. A node's close at the
moment of reuse would fail a request with an unknown outcome."""
READ_BUFFER_BYTES: Final = 1024 * 1024
"""Bytes that a connection reads ahead of its reader. Twice this much pauses the socket."""
JOINED_BYTES_MAX: Final = 32 * 1024
"""Most bytes of a body that is joined. One packet is cheaper than several small packets."""
WRITE_PIECE_BYTES: Final = 256 * 1024
"""Bytes of a body written to the socket at a time, with backpressure between."""
JSON_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest JSON response. A longer response is rejected instead of held."""
URLS_MAX: Final = 1_024
"""Most parsed URLs kept. Paths with topic names could be many."""
_HTTP_ERROR_MIN: Final = 400


class Startable(ABC):
    """An async context manager that starts on entry and closes on any exit."""

    @abstractmethod
    async def start(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


class PartsPayload(aiohttp.Payload):
    """A body of parts that are never joined. Batches go from their buffers to the socket."""

    def __init__(self, parts: Sequence[Part], size_bytes: int, content_type: str) -> None:
        super().__init__(parts, content_type=content_type)
        self._parts = parts
        self._size = size_bytes

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text, for aiohttp's debugging."""
        return b"".join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all parts, waiting whenever the connection's buffer is full."""
        for part in self._parts:
            if len(part) <= WRITE_PIECE_BYTES:
                await writer.write(part)
                continue
            view = memoryview(part)
            for start in range(0, len(part), WRITE_PIECE_BYTES):
                await writer.write(view[start : start + WRITE_PIECE_BYTES])

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Write all parts. The length in the header is this body's."""
        await self.write(writer)


class Transport:
    """Sends requests to nodes by address. One per client. `close` ends its connections."""

    def __init__(self, *, client_id: str, request_timeout_ms: float) -> None:
        self.request_timeout_s = request_timeout_ms / 1000
        self._timeout = aiohttp.ClientTimeout(
            total=self.request_timeout_s, sock_connect=CONNECT_TIMEOUT_S
        )
        self._headers = {"User-Agent": client_id, "Accept-Encoding": "identity"}
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[NodeAddress, str], URL] = {}

    def start(self) -> None:
        """Make the session. Call it inside its event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                auto_decompress=False,
                read_bufsize=READ_BUFFER_BYTES,
                skip_auto_headers=("Content-Type",),
            )
            # aiohttp would repeat a DELETE when a kept connection breaks. The caller above decides
            # whether a request may be repeated.
            self._session._retry_connection = False

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        address: NodeAddress,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Send one JSON request and return its response, of type `kind`.

        Raises ServerError, ConnectionLostError, and RaftlogClientError for a response of another
        shape.
        """
        data = None if body is None else msgspec.json.encode(body)
        async with self._request(
            address, method, path, data=data, content_type=JSON_TYPE, timeout_s=timeout_s
        ) as response:
            answer = await _read_bounded(response)
        return decoded(answer or b"{}", kind, address)

    async def produce(
        self, address: NodeAddress, path: str, parts: Sequence[Part], size_bytes: int
    ) -> ProduceResults:
        """Send one produce request of encoded frames and return a result for each frame.

        Raises as `call`, except ConnectionLostError for a response of another shape, because the
        frames may be written.
        """
        if size_bytes <= JOINED_BYTES_MAX:
            parts = (b"".join(parts),)
        body = PartsPayload(parts, size_bytes, BATCHES_MEDIA_TYPE)
        async with self._request(
            address, "POST", path, data=body, content_type=BATCHES_MEDIA_TYPE
        ) as response:
            answer = await _read_bounded(response)
        try:
            return json_decoder(ProduceResults).decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConnectionLostError(
                f"{address} sent a malformed produce answer: {error}", outcome_unknown=True
            ) from error

    @asynccontextmanager
    async def _request(
        self,
        address: NodeAddress,
        method: str,
        path: str,
        *,
        data: bytes | PartsPayload | None,
        content_type: str,
        timeout_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise ConnectionLostError("The client is closed.", outcome_unknown=False)
        timeout = self._timeout
        if timeout_s is None:
            timeout_s = self.request_timeout_s
        elif timeout_s != self.request_timeout_s:
            timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        headers = None if data is None else {"Content-Type": content_type}
        try:
            async with self._session.request(
                method,
                self._url(address, path),
                data=data,
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                if response.status >= _HTTP_ERROR_MIN:
                    raise refusal(response.status, await _read_bounded(response), address)
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = _reason(error)
            raise ConnectionLostError(
                f"Cannot connect to {address}: {reason}.", outcome_unknown=False, reason=reason
            ) from error
        except TimeoutError as error:
            raise ConnectionLostError(
                f"{address} did not answer within {timeout_s:.3f} s.",
                outcome_unknown=True,
                reason=f"no answer within {timeout_s:.1f} s",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = _reason(error)
            raise ConnectionLostError(
                f"The connection to {address} broke: {reason}.",
                outcome_unknown=True,
                reason=f"the connection broke: {reason}",
            ) from error

    def _url(self, address: NodeAddress, path: str) -> URL:
        """Return the URL, parsed once, because the data plane uses the same few repeatedly."""
        url = self._urls.get((address, path))
        if url is None:
            if len(self._urls) >= URLS_MAX:
                self._urls.clear()
            url = self._urls[address, path] = URL(f"http://{address}{path}", encoded=True)
        return url


def _reason(error: Exception) -> str:
    """Return the cause once, in the operating system's words for a system error."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
        case aiohttp.ClientConnectorError(os_error=OSError(strerror=str() as text, errno=number)):
            # asyncio's text repeats the address. A failed name lookup has no errno of the system.
            return (errorcode.get(number or 0) and strerror(number or 0)) or text
        case aiohttp.ClientResponseError():
            return "it does not speak HTTP as a raftlog node does"
        case OSError(strerror=str() as text):
            return text
        case _:
            return str(error) or type(error).__name__


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body, up to JSON_ANSWER_BYTES_MAX."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > JSON_ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"answer over {JSON_ANSWER_BYTES_MAX} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decoded(answer: bytes, kind: type[T], address: NodeAddress) -> T:
    """Decode a JSON response of type `kind`. A newer node's fields are ignored.

    Raises ConnectionLostError for other bytes than JSON, RaftlogClientError for another shape.
    """
    try:
        return json_decoder(kind).decode(answer)
    except msgspec.ValidationError as error:
        raise RaftlogClientError(
            f"{address} sent a malformed answer, no {kind.__name__}: {error}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConnectionLostError(
            f"{address} answered something that is not JSON: {answer[:80]!r}", outcome_unknown=True
        ) from error


def refusal(status: int, answer: bytes, address: NodeAddress) -> RaftlogClientError:
    """Return the exception for an error response. Another form is judged by its status."""
    try:
        error = json_decoder(ErrorBody).decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = answer[:200].decode(errors="replace").strip()
        return server_error(
            status * 100,
            f"{address} answered HTTP {status}, and not as a raftlog node does: {quoted(text)}. "
            "Is its port right?",
        )
    return server_error(error.error_code, error.message)


def parse_bootstrap(servers: str | Sequence[str]) -> list[NodeAddress]:
    """Parse addresses from `"host:port,host:port"` or a list. The port is optional.

    `http://host:port` is also accepted. Raises ValueError for no address or a malformed address.
    """
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses: list[NodeAddress] = []
    for text in texts:
        server = text.strip().removeprefix("http://").rstrip("/")
        if not server:
            continue
        host, colon, port = server.rpartition(":")
        if not colon or server.endswith("]"):
            host, port = server, str(PORT_DEFAULT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in host:
            raise ValueError(f"bootstrap_servers: {text.strip()!r} is not host:port")
        addresses.append(NodeAddress(f"{host}:{port}"))
    if not addresses:
        raise ValueError("bootstrap_servers names no server")
    return addresses
