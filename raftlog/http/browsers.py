"""A page of another origin must not reach this node through a user's browser.

A browser sends requests for any page on display, from inside the user's network. So a request is
rejected if its headers show that a foreign page sent it (CSRF), or if it names this node by a
foreign host name. A page does that in DNS rebinding, where its own name resolves to this node.
Programs send neither `Origin` nor `Sec-Fetch-Site`, so only their host name is checked.

Source: Fetch standard (Origin, CORS), Fetch Metadata Request Headers, RFC 9110 (421).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from aiohttp.hdrs import HOST, ORIGIN
from multidict import istr

from raftlog.http.request import Request
from raftlog.record.errors import HOST_NOT_ALLOWED, ORIGIN_NOT_ALLOWED, LogError

ORIGINS_SETTING: Final = "--allowed-origins"
HOSTS_SETTING: Final = "--allowed-hosts"
HOSTS_REMEMBERED_MAX: Final = 64
"""Accepted Host headers that are not checked again."""
PREFLIGHT_S: Final = 600
"""Seconds for which a browser may cache the response to a preflight request."""
EXPOSED_HEADERS: Final = (
    "X-Raftlog-High-Watermark, X-Raftlog-Next-Offset, X-Raftlog-Log-Start-Offset, Retry-After"
)
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_SEC_FETCH_SITE: Final = istr("Sec-Fetch-Site")
_FOREIGN_SITES: Final = ("cross-site", "same-site")


class BrowserGuard:
    """Checks the browser's headers of each request, by the settings of one server."""

    def __init__(
        self,
        allowed_origins: Iterable[str],
        allowed_hosts: Iterable[str],
        cluster_hosts: Callable[[], Iterable[str]],
    ) -> None:
        self._origins = frozenset(allowed_origins)
        self._hosts = frozenset(host_name(host) for host in allowed_hosts)
        self._cluster_hosts = cluster_hosts
        """Host names of the cluster's nodes, as they are advertised."""
        self._accepted: set[str] = set()

    def check(self, request: Request, *, any_host: bool) -> Mapping[str, str]:
        """The response's CORS headers. Raises LogError ORIGIN_NOT_ALLOWED, HOST_NOT_ALLOWED."""
        headers = request.headers
        host = headers.get(HOST)
        if host is not None and host not in self._accepted and not any_host:
            self._check_host(host)
        origin = headers.get(ORIGIN)
        if origin is not None:
            if origin in self._origins:
                return cors_headers(origin)
            if host is None or origin.partition("://")[2].lower() != host.lower():
                raise LogError(
                    ORIGIN_NOT_ALLOWED,
                    f"Pages of {origin[:100]!r} may not use this node from a browser: list that "
                    f"origin in {ORIGINS_SETTING} if they should.",
                )
        site = headers.get(_SEC_FETCH_SITE)
        if site is not None and site.lower() in _FOREIGN_SITES:
            raise LogError(
                ORIGIN_NOT_ALLOWED,
                "A page of another site may not use this node from a browser: list its origin in "
                f"{ORIGINS_SETTING}, and have the page send CORS requests, if it should.",
            )
        return _NO_HEADERS

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if not (
            name == "localhost"
            or name in self._hosts
            or _is_address(name)
            or name in map(host_name, self._cluster_hosts())
        ):
            raise LogError(
                HOST_NOT_ALLOWED,
                f"{host[:100]!r} is not a host name of this node: use an advertised name or an IP "
                f"address, or list the name in {HOSTS_SETTING}.",
            )
        if len(self._accepted) < HOSTS_REMEMBERED_MAX:
            self._accepted.add(host)


def host_name(host: str) -> str:
    """The Host header's name or address in lower case, without port and final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, colon, port = host.rpartition(":")
    if colon and ":" not in name and port.isdigit():
        host = name
    return host.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    """Whether the name is an IP literal. Rebinding needs a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def cors_headers(origin: str) -> Mapping[str, str]:
    """Headers that let a page of this origin read the response."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": EXPOSED_HEADERS,
        "Vary": "Origin",
    }


def preflight_headers(request: Request, methods: str) -> Mapping[str, str]:
    """Headers of the response to a preflight request of an allowed origin."""
    headers = {"Access-Control-Allow-Methods": methods, "Access-Control-Max-Age": str(PREFLIGHT_S)}
    wanted = request.headers.get("Access-Control-Request-Headers")
    if wanted is not None:
        headers["Access-Control-Allow-Headers"] = wanted
    return headers


def parse_origins(text: str | None) -> tuple[str, ...]:
    """Origins separated by commas. Raises ValueError for anything but `scheme://host[:port]`."""
    origins = _words(text)
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != origin:
            raise ValueError(
                f"{ORIGINS_SETTING}: {origin!r} is not an origin such as https://example.com:8443"
            )
    return origins


def parse_hosts(text: str | None) -> tuple[str, ...]:
    """Host names separated by commas. Raises ValueError for anything else."""
    hosts = _words(text)
    for host in hosts:
        if not host or "/" in host or ":" in host or "*" in host:
            raise ValueError(f"{HOSTS_SETTING}: {host!r} is not a host name, without a port")
    return hosts


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()
