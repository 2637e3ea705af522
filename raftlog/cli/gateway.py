"""`raftlog gateway` serves the logs of all clusters of a catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from raftlog.cli.serve import LogSettings, configure_log
from raftlog.gateway.process import GatewaySettings, run_gateway
from raftlog.http.browsers import parse_hosts, parse_origins
from raftlog.http.settings import ServerSettings
from raftlog.peer.dial import parse_address

LISTEN_DEFAULT: Final = "127.0.0.1:8084"
HOME_ADDRESSES_MAX: Final = 100


def _parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that parses a value. ValueError becomes an error of usage."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _home(value: str) -> tuple[str, ...]:
    addresses = tuple(word.strip().removeprefix("http://").rstrip("/") for word in value.split(","))
    if len(addresses) > HOME_ADDRESSES_MAX:
        raise ValueError(f"more than {HOME_ADDRESSES_MAX} addresses")
    for address in addresses:
        parse_address(address)
    return addresses


@click.command()
@click.option(
    "--home",
    required=True,
    envvar="RAFTLOG_GATEWAY_HOME",
    show_envvar=True,
    metavar="HOST:PORT,…",
    callback=_parsed(_home),
    help="Nodes of the home cluster, with the catalog, the groups and their offsets.",
)
@click.option(
    "--listen",
    default=LISTEN_DEFAULT,
    envvar="RAFTLOG_GATEWAY_LISTEN",
    show_envvar=True,
    metavar="HOST:PORT",
    callback=_parsed(parse_address),
    help="Address to listen on.",
)
@click.option(
    "--allowed-hosts",
    envvar="RAFTLOG_GATEWAY_ALLOWED_HOSTS",
    show_envvar=True,
    metavar="NAME,…",
    callback=_parsed(parse_hosts),
    help="Host names of this gateway, or of a load balancer before it.",
)
@click.option(
    "--allowed-origins",
    envvar="RAFTLOG_GATEWAY_ALLOWED_ORIGINS",
    show_envvar=True,
    metavar="URL,…",
    callback=_parsed(parse_origins),
    help="Origins of pages that may use this gateway from a browser.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The lowest level of messages on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: one object per line.",
)
def gateway(
    *,
    home: tuple[str, ...],
    listen: tuple[str, int],
    allowed_hosts: tuple[str, ...],
    allowed_origins: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> int:
    """Serve the logs of all clusters of a catalog, until SIGTERM or Ctrl-C.

    The catalog is the topic raftlog.catalog of the home cluster. Clients produce and read by the v2
    REST convention as at a node. A consumer group reads logs of several clusters, and its offsets
    are kept in the home cluster. Any number of gateways serve in parallel, and a client may use
    another gateway for each request.

    \b
      raftlog gateway --home h1:8082,h2:8082,h3:8082 --listen 0.0.0.0:8084
    """
    host, port = listen
    configure_log(msgspec.convert({"level": log_level, "format": log_format}, LogSettings))
    return run_gateway(
        GatewaySettings(
            home,
            ServerSettings(
                host=host, port=port, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins
            ),
        )
    )
