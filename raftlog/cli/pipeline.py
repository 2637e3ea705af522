"""`raftlog pipeline run` runs Spark Declarative Pipelines over topics.

Spark is an extra, and the node does without it. Only this module of raftlog imports the connector,
when the command runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import config_pairs, servers_option
from raftlog.cli.groups import Lazy, LazyGroup


def _names(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("name tables, with commas between them")
    return tuple(names)


@click.command()
@click.argument("project", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[4], spark://…, k8s://…, yarn, or a Connect server, sc://….  "
    "[default: the spec's, or this machine]",
)
@click.option(
    "--conf",
    "config",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting to start Spark with. May be repeated.",
)
@click.option(
    "--refresh", metavar="TABLE,…", multiple=True, callback=_names, help="Run only these tables."
)
@click.option(
    "--full-refresh",
    metavar="TABLE,…",
    multiple=True,
    callback=_names,
    help="Rebuild these from the first record on.",
)
@click.option("--full-refresh-all", is_flag=True, help="Rebuild all tables.")
@click.option("--dry-run", is_flag=True, help="Check all definitions, and move no data.")
@servers_option
def run(
    *,
    project: Path,
    master: str | None,
    config: tuple[str, ...],
    refresh: tuple[str, ...],
    full_refresh: tuple[str, ...],
    full_refresh_all: bool,
    dry_run: bool,
    servers: str,
) -> None:
    """Run a pipeline over the present records of topics, and end.

    The next run resumes from there.

    FILE is the spec of a Spark Declarative Pipelines project, DIR holds a spark-pipeline.yml. Its
    definitions, in Python and SQL, find the cluster in the variable RAFTLOG_SERVERS.

    \b
      pip install "raftlog[pipelines]"
      raftlog pipeline run my-project --master 'local[4]'
    """
    from raftlog_spark import errors, pipelines  # noqa: PLC0415  an extra, see above

    settings = config_pairs(config)
    os.environ["RAFTLOG_SERVERS"] = servers
    try:
        # Spark's output is messages.
        with contextlib.redirect_stdout(sys.stderr):
            pipelines.run(
                project,
                master=master,
                config=settings,
                refresh=refresh,
                full_refresh=full_refresh,
                full_refresh_all=full_refresh_all,
                dry=dry_run,
            )
    except pipelines.SpecError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
    except errors.RaftlogSparkError as error:
        raise CommandError(str(error)) from error


pipeline = LazyGroup(
    "pipeline",
    subcommands={"run": Lazy(__name__, "run", "Run a project of Spark Declarative Pipelines.")},
    help="Run data pipelines on Spark, from topics to topics and tables.",
)
