"""An HTTP client that sends each request once, and knows whether a request may have had an effect.

Common clients repeat a request on a fresh connection when a kept connection has just ended. A write
sent twice may take effect twice, which would poison a history under check.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 16 * 1024 * 1024


class NoAnswerError(Exception):
    """No whole answer has come."""


class NotSentError(NoAnswerError):
    """No byte of the request was sent: no effect, now or later."""


class OutcomeLostError(NoAnswerError):
    """The request may have left, and no whole answer has come."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    body: bytes
    location: str | None = None


class KeptConnection:
    """A connection to one address, opened on demand and kept while whole.

    One request at a time.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, method: str, path: str, body: bytes = b"", *, timeout_s: float
    ) -> HttpAnswer:
        """Send one request and wait for its answer. Raises NotSentError or OutcomeLostError."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        reader, writer = await self._connected(deadline)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout_at(deadline):
                writer.write(head.encode() + body)
                await writer.drain()
                return await _read_answer(reader)
        except TimeoutError as error:
            self.close()
            raise OutcomeLostError("timeout") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self.close()
            raise OutcomeLostError(type(error).__name__) from error
        except BaseException:
            # A later answer on this connection would belong to this request.
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the next request opens another."""
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.transport.abort()
        self._reader = self._writer = None

    async def _connected(
        self, deadline: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and (self._reader.at_eof() or self._reader.exception()):
            self.close()
        if self._reader is None or self._writer is None:
            host, _, port = self.address.rpartition(":")
            try:
                async with asyncio.timeout_at(deadline):
                    self._reader, self._writer = await asyncio.open_connection(
                        host, int(port), limit=HEAD_BYTES_MAX
                    )
            except TimeoutError as error:
                raise NotSentError("timeout of the connect") from error
            except OSError as error:
                raise NotSentError(type(error).__name__) from error
        return self._reader, self._writer


async def _read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = int(headers.get("content-length", "0"))
    if "transfer-encoding" in headers or length > BODY_BYTES_MAX:
        raise OSError("an answer in a form that is not expected here")
    return HttpAnswer(
        status=int(status_line.split(" ")[1]),
        body=await reader.readexactly(length),
        location=headers.get("location"),
    )


async def request_once(
    address: str, method: str, path: str, body: bytes = b"", *, timeout_s: float
) -> HttpAnswer:
    """Send one request over a connection of that request alone. Raises NoAnswerError."""
    connection = KeptConnection(address)
    try:
        return await connection.request(method, path, body, timeout_s=timeout_s)
    finally:
        connection.close()
