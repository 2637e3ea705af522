"""Control protocol of the manager, as lines of JSON over a Unix socket.

The socket is in the cluster's directory. A connection is one request and its responses, `Step`s
during the work and then `Done` or `Failed`. Line length and connections are bounded. The socket of
a dead manager is harmless, since it refuses connections, and the next manager replaces it. Only the
lock decides which process manages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from raftlog.api.manager import ControlAnswer, ControlRequest, Done, Failed, Step
from raftlog.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 16
REQUEST_TIMEOUT_S: Final = 5.0
STEPS_QUEUED_MAX: Final = 1_000
PATH_BYTES_MAX: Final = 100
"""Limit of a Unix socket's address (108 bytes), less a little room."""
CLOSE_TIMEOUT_S: Final = 2.0


Tell: TypeAlias = Callable[[str], None]
Handler: TypeAlias = Callable[[ControlRequest], Awaitable[Any]]

_REQUEST: Final = msgspec.json.Decoder(ControlRequest)
_ANSWER: Final = msgspec.json.Decoder(ControlAnswer)


class ControlServer:
    """Serves commands. Every waiting command gets the texts given to `tell`."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._listeners: dict[asyncio.Task[None], asyncio.Queue[str]] = {}

    async def start(self, path: Path) -> None:
        """Listen for the lock's holder, in place of any socket left behind. Raises OSError."""
        listening = _listening(path)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=LINE_BYTES_MAX
            )
        except BaseException:
            listening.close()
            raise

    async def close(self, path: Path) -> None:
        """Stop listening, and finish responses under way."""
        if self._server is None:
            return
        self._server.close()
        _remove(path)
        if self._listeners:
            _, late = await asyncio.wait(list(self._listeners), timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def tell(self, text: str) -> None:
        """Send a step to every waiting command."""
        for queue in self._listeners.values():
            # A command that reads so slowly loses steps. The log has all of them.
            with suppress(asyncio.QueueFull):
                queue.put_nowait(text)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._listeners) >= CONNECTIONS_MAX:
                await _write(writer, Failed("the manager is busy with other commands"))
                return
            queue: asyncio.Queue[str] = asyncio.Queue(STEPS_QUEUED_MAX)
            self._listeners[task] = queue
            await self._converse(reader, writer, queue)
        except (OSError, asyncio.CancelledError) as error:
            # The command has ended, or the manager ends. Work under way is not undone.
            logger.debug("a command went away: %r", error)
        finally:
            self._listeners.pop(task, None)
            writer.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, steps: asyncio.Queue[str]
    ) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = _REQUEST.decode(await reader.readline())
        except (TimeoutError, ValueError, msgspec.DecodeError) as error:
            await _write(writer, Failed(f"the manager does not understand the request: {error}"))
            return
        # The work is a separate task, since a change under way must not end with its command.
        work = asyncio.ensure_future(self._answer(request))
        saying = asyncio.ensure_future(self._say(writer, steps))
        try:
            await asyncio.wait({work, saying}, return_when=asyncio.FIRST_COMPLETED)
            answer = await asyncio.shield(work)
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)
        while not steps.empty():
            await _write(writer, Step(steps.get_nowait()))
        await _write(writer, answer)

    async def _say(self, writer: asyncio.StreamWriter, steps: asyncio.Queue[str]) -> None:
        while True:
            await _write(writer, Step(await steps.get()))

    async def _answer(self, request: ControlRequest) -> Done | Failed:
        try:
            return Done(await self._handle(request))
        except ClusterError as error:
            return Failed(str(error), error.hint)
        except OSError as error:
            return Failed(f"the manager failed: {error}")
        except Exception as error:
            # A mistake of ours must not leave a command waiting, or end the manager of a cluster
            # that runs.
            logger.exception("request %r failed", request)
            return Failed(f"the manager failed: {error!r}", "Its log has more.")


async def ask(path: Path, request: ControlRequest) -> AsyncIterator[ControlAnswer]:
    """Send the manager a request. Yield its responses, the last of them Done or Failed.

    Raises OSError without a listener, and ClusterError if the manager ends without a response.
    """
    with _address(path) as address:
        reader, writer = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        await writer.drain()
        async for answer in answers(reader):
            yield answer
    finally:
        writer.close()


async def answers(reader: asyncio.StreamReader) -> AsyncIterator[ControlAnswer]:
    """The responses on a stream, the last of them Done or Failed. Raises ClusterError."""
    while True:
        try:
            line = await reader.readline()
        except (OSError, ValueError) as error:
            raise ClusterError(f"the manager's answer was cut off: {error}") from error
        if not line.endswith(b"\n"):
            raise ClusterError("the manager ended without an answer")
        try:
            answer = _ANSWER.decode(line)
        except msgspec.DecodeError as error:
            raise ClusterError(f"the manager's answer cannot be read: {error}") from error
        yield answer
        if not isinstance(answer, Step):
            return


def answer_line(answer: ControlAnswer) -> bytes:
    """A response as a line. Steps are cut to the line length."""
    line = msgspec.json.encode(answer) + b"\n"
    if len(line) < LINE_BYTES_MAX:
        return line
    shorter: ControlAnswer = (
        Step(answer.text[:1_000]) if isinstance(answer, Step) else Failed("the answer is too long")
    )
    return msgspec.json.encode(shorter) + b"\n"


async def _write(writer: asyncio.StreamWriter, answer: ControlAnswer) -> None:
    writer.write(answer_line(answer))
    await writer.drain()


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        with _address(path) as address:
            made.bind(address)
        path.chmod(0o600)
    except BaseException:
        made.close()
        raise
    return made


def _remove(path: Path) -> None:
    # A socket left behind does no harm.
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """An address for the socket, through its directory's descriptor if the path is long."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
