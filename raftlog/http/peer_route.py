"""Other nodes connect to `GET /v1/internal/{channel}`, which OpenAPI does not describe."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from raftlog.http.connections import Connection
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import error_response
from raftlog.http.routing import Route
from raftlog.peer.network import UnprovenError
from raftlog.peer.opening import PATH
from raftlog.record.errors import NOT_READY, UNAUTHORIZED, LogError


class HandedOver(web.StreamResponse):
    """The empty response to a request after its connection was handed over."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing."""


async def connect(request: Request, context: ServerContext) -> web.StreamResponse:
    """Begin the handshake with a node. Strangers get UNAUTHORIZED, and a nonce to prove."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    network = context.network
    if network is None:
        raise LogError(UNAUTHORIZED, "This node has no cluster.")
    try:
        protocol = network.answer(
            request.path_parameters["channel"],
            request.headers,
            connection.address,
            connection.connection_lost,
        )
    except UnprovenError as error:
        response = error_response(error.entry, error.message)
        # `Connection.finish_response` sees the nonce here, and allows this connection another
        # request.
        response.headers.update(error.headers)
        return response
    connection.hand_over(protocol)
    return HandedOver()


ROUTE = Route(
    "GET",
    PATH + "{channel}",
    connect,
    "Connect as a node",
    tag="internal",
    errors=(UNAUTHORIZED, NOT_READY),
    streams=True,
    serves_always=True,
    any_host=True,
)
