"""Every handler takes the request and the server's context.

aiohttp's own `match_info` needs its Application, and `query` builds a multidict through yarl on
every request, measurable at tens of thousands of requests a second (docs/decisions/http-server.md).
So `Request` reads path and query itself. Parameters are returned as numbers, choices and names.
Each failure is a typed error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic
from urllib.parse import parse_qsl

from aiohttp import web
from typing_extensions import TypeVar

from raftlog.api.common import INT64_MAX
from raftlog.broker.authorize import ANONYMOUS, Principal
from raftlog.broker.service import Broker
from raftlog.broker.shared import ListenedService
from raftlog.http.metrics import ServerMetrics
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.record.errors import BAD_REQUEST, UNKNOWN_PARTITION, LogError
from raftlog.record.types import PartitionId

if TYPE_CHECKING:
    from raftlog.peer.network import HttpNetwork

Service_co = TypeVar("Service_co", bound=ListenedService, default=Broker, covariant=True)
"""The service behind a server, by default a node's broker."""

QUERY_PARAMETERS_MAX: Final = 64

_NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})


class Request(web.BaseRequest):
    """A routed request."""

    ATTRS = web.BaseRequest.ATTRS | frozenset(
        (
            "path_parameters",
            "query_text",
            "address_group",
            "cors_headers",
            "is_admitted",
            "bytes_held",
            "must_close",
            "cancel_on_disconnect",
            "principal",
            "_query_parameters",
        )
    )

    path_parameters: Mapping[str, str] = _NO_PARAMETERS
    """Values of the route's `{name}`s, percent-decoded."""
    query_text: str = ""
    """The raw query, without `?`."""
    address_group: str = ""
    """The client's address, as the budgets count it."""
    cors_headers: Mapping[str, str] = _NO_PARAMETERS
    """Headers of the response to a page of an allowed origin."""
    is_admitted: bool = False
    """Whether the request counts as in flight."""
    bytes_held: int = 0
    """Bytes in flight that this request holds, released with its response."""
    must_close: bool = False
    """Whether the connection must close after this request, because its end is unknown."""
    cancel_on_disconnect: bool = False
    """Whether to cancel the handler once the peer has left."""
    principal: Principal = ANONYMOUS
    """The client, as the broker authorizes it."""
    _query_parameters: Mapping[str, str] | None = None

    @property
    def query_parameters(self) -> Mapping[str, str]:
        """The query, decoded. A parameter given twice, or too many, is LogError BAD_REQUEST."""
        if self._query_parameters is None:
            self._query_parameters = (
                _parse_query(self.query_text) if self.query_text else _NO_PARAMETERS
            )
        return self._query_parameters


def _parse_query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_PARAMETERS_MAX
        )
    except ValueError as error:
        raise LogError(BAD_REQUEST, f"The query is malformed: {error}") from None
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise LogError(BAD_REQUEST, "A query parameter is given twice.")
    return parameters


_DIGITS_MAX: Final = 20


def whole_number(text: str) -> int | None:
    """The integer that `text` writes in plain ASCII decimal, or None.

    Stricter than `int()`, which takes blanks, underscores, a plus sign and any script's digits.
    """
    digits = text[1:] if text.startswith("-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    return int(text)


def integer_parameter(
    request: Request, name: str, default: int, *, minimum: int = 0, maximum: int = INT64_MAX
) -> int:
    """A whole number from the query. Raises LogError BAD_REQUEST unless it is within the bounds."""
    text = request.query_parameters.get(name)
    if text is None:
        return default
    value = whole_number(text)
    if value is None:
        raise LogError(BAD_REQUEST, f"{name} must be a whole number, not {text[:40]!r}.")
    if not minimum <= value <= maximum:
        raise LogError(BAD_REQUEST, f"{name} is {value}; allowed is {minimum} to {maximum}.")
    return value


def choice_parameter(request: Request, name: str, default: str, choices: Collection[str]) -> str:
    """One of `choices` from the query. Raises LogError BAD_REQUEST for any other value."""
    value = request.query_parameters.get(name, default)
    if value not in choices:
        allowed = ", ".join(sorted(choices))
        raise LogError(BAD_REQUEST, f"{name} must be one of {allowed}, not {value[:40]!r}.")
    return value


def partition_parameter(request: Request) -> PartitionId:
    """The partition number in the path. Raises LogError UNKNOWN_PARTITION for anything else."""
    text = request.path_parameters["partition"]
    value = whole_number(text)
    if value is None or not 0 <= value < 2**31:
        raise LogError(UNKNOWN_PARTITION, f"{text[:40]!r} is not a partition number.")
    return PartitionId(value)


_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)


def own_url(request: Request, context: ServerContext[ListenedService]) -> str:
    """The address of this server for links, without a path, as the peer used it."""
    host = request.headers.get("Host", "")
    if _HOST.fullmatch(host) is None:
        # A malformed header must not appear in links.
        host = f"{context.settings.host}:{context.settings.port}"
    return f"http://{host}"


@dataclass(frozen=True, slots=True)
class ServerContext(Generic[Service_co]):
    """The surroundings of all requests. Each server has one instance."""

    broker: Service_co
    settings: ServerSettings
    metrics: ServerMetrics
    on_broken_invariant: Callable[[AssertionError], None] | None = None
    """Called with an assertion that failed in a handler. The node then ends."""
    network: HttpNetwork | None = None
    """Network that accepts connections of other nodes. None rejects them all."""

    @property
    def limits(self) -> ServerLimits:
        """The settings' limits."""
        return self.settings.limits

    def admit(self, request: Request) -> None:
        """Count `request` as in flight until its response.

        Raises LogError OVERLOADED, QUOTA_EXCEEDED.
        """
        self.broker.requests_in_flight.reserve(1, request.address_group)
        request.is_admitted = True
        self.broker.turns.work_for(request.address_group)

    def hold(self, request: Request, size: int) -> None:
        """Count `size` bytes as held by `request` until its response.

        They are memory that a handler uses besides the body, such as inflated bytes or data read
        for a response. Raises LogError OVERLOADED or QUOTA_EXCEEDED.
        """
        self.broker.bytes_in_flight.reserve(size, request.address_group)
        request.bytes_held += size

    def hold_anyway(self, request: Request, size: int) -> None:
        """Have `request` hold at least `size` bytes, over the limits if need be.

        They are those of the response to a completed request.
        """
        more = size - request.bytes_held
        if more > 0:
            self.broker.bytes_in_flight.force_reserve(more, request.address_group)
            request.bytes_held = size

    def free(self, request: Request, size: int) -> None:
        """Release some of the bytes in flight that `request` holds, before its response."""
        self.broker.bytes_in_flight.release(size, request.address_group)
        request.bytes_held -= size

    def release(self, request: Request) -> None:
        """Release all that `request` holds. Harmless if done already."""
        if request.is_admitted:
            request.is_admitted = False
            self.broker.requests_in_flight.release(1, request.address_group)
        if request.bytes_held:
            self.free(request, request.bytes_held)
