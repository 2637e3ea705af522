"""`scripts/deploy`: a cluster on hosts reached by ssh."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from raftlog.fleet.deploy import PORT_DEFAULT, cluster_of, open_deployment
from raftlog.fleet.errors import FleetError, UnreachableError, has_cause
from raftlog.fleet.release import Release, build_release, read_release

SOURCE: Final = Path(__file__).parents[2]
"""The checkout of this file."""
FAILED: Final = 1
UNREACHABLE: Final = 4


@click.command()
@click.argument("hosts", nargs=-1, metavar="HOST...")
@click.option("--upgrade", is_flag=True, help="Roll this release through the running nodes.")
@click.option("--down", is_flag=True, help="Stop all nodes. Data and settings stay.")
@click.option(
    "--replace",
    type=click.IntRange(1),
    metavar="N",
    help="Start node N, which has lost its disk, again with its number, vote and replicas.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    help="Port of new nodes.",
)
@click.option(
    "--rack-from",
    metavar="COMMAND",
    help="Command that prints the rack of a new node, run on its host.",
)
@click.option(
    "--wheels",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with the release, which is built there if empty. "
    "By default this checkout is built.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Longest wait for one node to become ready, or to be allowed to stop.",
)
@click.option("--dry-run", is_flag=True, help="Read the hosts, print the plan, change nothing.")
def main(
    hosts: tuple[str, ...],
    *,
    upgrade: bool,
    down: bool,
    replace: int | None,
    port: int,
    rack_from: str | None,
    wheels: Path | None,
    timeout_s: float,
    dry_run: bool,
) -> None:
    """Run a raftlog cluster on HOSTs reached by ssh, with one systemd unit each.

    A HOST is [user@]host[:port][=address]. Nodes and clients use the address, by default the host.
    Always name all hosts of the cluster. Without options, missing nodes are set up and started, and
    running nodes stay as they are. The first three hosts vote, and later hosts join.
    RAFTLOG_SSH_OPTIONS holds further options of ssh.

    \b
      scripts/deploy h1 h2 h3
      scripts/deploy --upgrade h1 h2 h3
      scripts/deploy --replace 3 h1 h2 h3
      scripts/deploy --down h1 h2 h3
    """
    if upgrade + down + (replace is not None) > 1:
        raise click.UsageError("--upgrade, --down and --replace exclude each other")
    if not hosts:
        raise click.UsageError("name the hosts of the cluster")
    started_s = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - started_s:6.1f} s  {line}", err=True)

    async def work() -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM ends as Ctrl-C does, so connections and temporary files are removed.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with tempfile.TemporaryDirectory(prefix="raftlog-deploy-") as temporary:
            work = Path(temporary)
            async with open_deployment(
                cluster_of(hosts, port), work, say, rack_from=rack_from, timeout_s=timeout_s
            ) as deployment:
                if dry_run:
                    for row in await deployment.preview(replace):
                        click.echo(row)
                    return []
                if down:
                    await deployment.down()
                    return []
                release = await asyncio.to_thread(_release, wheels or work / "wheels")
                say(f"release {release.version}: {len(release.wheels)} wheels")
                if replace is not None:
                    return await deployment.replace(replace, release)
                return await (deployment.upgrade if upgrade else deployment.up)(release)

    try:
        addresses = asyncio.run(work())
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
    except (FleetError, OSError, ValueError) as error:
        hint = error.hint if isinstance(error, FleetError) else None
        click.echo(f"deploy: {error}{f' {hint}' if hint else ''}", err=True)
        sys.exit(UNREACHABLE if has_cause(error, UnreachableError) else FAILED)
    if addresses:
        say("all nodes are ready")
        click.echo(f"export RAFTLOG_SERVERS={','.join(addresses)}")


def _release(wheels: Path) -> Release:
    """The release in the directory, built there if the directory is empty. Blocks."""
    if wheels.is_dir() and any(wheels.iterdir()):
        return read_release(wheels)
    return build_release(SOURCE, wheels)


if __name__ == "__main__":
    main()
