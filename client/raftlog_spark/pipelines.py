"""Runs a project of Spark Declarative Pipelines, with raftlog's topics as sources and sinks.

A project is a directory with a spec, `spark-pipeline.yml`, and the Python and SQL definitions named
there. Spark runs a project over Spark Connect: a client reads the definitions, and a server runs
them. Without a server's address (`sc://…`), this process starts a private server in its own JVM.

A run reads the existing records and ends. Progress is kept below the spec's `storage`, where the
next run continues. Tables need a catalog that keeps them: Spark's default catalog forgets tables
when a run ends, and the next run then finds files in the way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog_spark.errors import RaftlogSparkError
from raftlog_spark.session import session

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml", "pipeline.yml", "pipeline.yaml")
"""Names of a spec in a directory. The first two are Spark's own."""

MASTER_DEFAULT = "local[*]"
_CONNECT = "sc://"
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
_SERVER_CONFIG: Mapping[str, str] = {
    "spark.api.mode": "classic",
    # Loopback and a free port. Spark's default is port 15002 of all addresses, which allows only
    # one pipeline on a machine at a time.
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    # Spark sets these for a server in its client's process.
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
}
LOCAL_SERVER_CONFIG: Mapping[str, str] = {
    # Two flows that started together were both seen to fail for good, in serializing a collection
    # that Spark had changed in between (docs/decisions/spark-pipelines.md). One flow has all cores
    # of this machine.
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1"
}
"""Further settings of a Connect server on this machine that runs pipelines."""

# Settings of the place where Spark runs, which is fixed before the server starts.
_PLACES = frozenset({"spark.master", "spark.remote", "spark.api.mode"})
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


class PipelineError(RaftlogSparkError):
    """A pipeline did not run to its end. The message is Spark's."""


class SpecError(PipelineError):
    """The path has no spec, or an invalid spec."""


class ExtraMissingError(PipelineError):
    """Spark, or a package that its pipelines need, is not installed."""


def run(
    project: Path,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    refresh: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
    dry: bool = False,
) -> None:
    """Run a pipeline over all existing records, and print progress, as Spark does.

    `project` is a spec, or its directory. `master` is as for Spark, or a Connect server's
    `sc://host:port`. The default is the spec's `spark.master`, or else this machine. `config` holds
    settings to start Spark with. The spec's own settings are set while Spark runs. `refresh` names
    the tables to update, default all. `full_refresh` names tables to rebuild from the start,
    `full_refresh_all` rebuilds all. `dry` checks all definitions and moves no data.

    Needs a separate process, without a Spark session: it sets variables that Spark reads.

    Raises FileNotFoundError, SpecError, ExtraMissingError, JavaError, and PipelineError: the run
    failed. Errors of the definitions' own Python pass through.
    """
    cli = _spark_cli()
    from pyspark.errors import PySparkException  # noqa: PLC0415  after it is known to be there

    path = find_spec(project)
    spec = _load(path, cli)
    try:
        with _connected(spec, place_of(master, spec.configuration, os.environ), config or {}):
            cli.run(
                spec_path=path,
                full_refresh=list(full_refresh),
                full_refresh_all=full_refresh_all,
                refresh=list(refresh),
                dry=dry,
            )
    except PySparkException as error:
        raise PipelineError(f"{spec.name}: {error}") from error


def find_spec(project: Path) -> Path:
    """The absolute path of the spec, or of the spec in that directory. Raises FileNotFoundError:
    nothing there. Raises SpecError: no spec, or more than one."""
    if project.is_file():
        return project.absolute()
    if not project.exists():
        raise FileNotFoundError(2, "No such file or directory", str(project))
    found = [project / name for name in SPEC_NAMES if (project / name).is_file()]
    if not found:
        raise SpecError(f"{project} holds no pipeline: it has no {SPEC_NAMES[0]}")
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise SpecError(f"{project} holds {names}: name the one to run")
    return found[0].absolute()


def _spark_cli() -> Any:
    try:
        from pyspark.pipelines import cli  # noqa: PLC0415  an extra

        import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise ExtraMissingError(
            f"Spark's pipelines cannot be loaded ({error}): "
            'pip install "raftlog[pipelines]" installs what they need'
        ) from error
    return cli


def _load(path: Path, cli: Any) -> PipelineSpec:
    import yaml  # noqa: PLC0415  an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415  an extra

    try:
        spec: PipelineSpec = cli.load_pipeline_spec(path)
    # Spark uses the document's parts without checking for them.
    except (PySparkException, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"{path} is no pipeline's spec: {error}") from error
    return spec


def place_of(
    master: str | None, configuration: Mapping[str, str], environ: Mapping[str, str]
) -> str:
    """The Connect server or master of a pipeline: from its caller, environment, or spec."""
    return (
        master
        or environ.get("SPARK_REMOTE")
        or configuration.get("spark.remote")
        or configuration.get("spark.master")
        or MASTER_DEFAULT
    )


@contextmanager
def _connected(spec: PipelineSpec, place: str, config: Mapping[str, str]) -> Iterator[None]:
    """Give this process a session on a Connect server, which Spark's own `run` then finds."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  an extra
    from pyspark.sql.connect.session import SparkSession as Client  # noqa: PLC0415  an extra

    if place.startswith(_CONNECT):
        if config:
            raise PipelineError(f"{place} runs already: {', '.join(config)} cannot be set there")
        os.environ["SPARK_REMOTE"] = place
        skip_figures(Client.builder.remote(place).getOrCreate().client)
        yield
        return
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)
    # Every program that reaches the port may run code. This process and its JVM share the token.
    os.environ[_TOKEN] = secrets.token_hex(32)
    server = session(spec.name, master=place, config=_server_config(spec, config, place))
    try:
        remote = Client.builder.remote(f"sc://localhost:{_port(server)}").getOrCreate()
        skip_figures(remote.client)
        # Spark sets these variables after starting such a server. A request for a session returns
        # the running session, and stopping that session stops the server.
        os.environ["SPARK_LOCAL_REMOTE"] = "1"
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        yield
    finally:
        if SparkSession._instantiatedSession is server:
            server.stop()


def _server_config(spec: PipelineSpec, config: Mapping[str, str], place: str) -> dict[str, str]:
    named = {**spec.configuration, **config}
    given = {key: value for key, value in named.items() if key not in _PLACES}
    plugins = [part for part in (given.get("spark.plugins"), _PLUGIN) if part]
    own = {**_SERVER_CONFIG, **(LOCAL_SERVER_CONFIG if place.startswith("local") else {})}
    return {**own, **given, "spark.plugins": ",".join(plugins)}


def _port(server: Any) -> int:
    """The server's listen address. Spark's client makes the same call, where it is tested."""
    service = getattr(server._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def skip_figures(client: Any) -> None:
    """Make a Connect client drop metrics from the answers to "run this pipeline".

    Spark 4.3.0's client does not know such answers there, and ends with UNKNOWN_RESPONSE
    `__python_accumulator__` after a Python source registered by a definition has read rows: the run
    is complete then, but counts as failed. Later versions skip them too (SPARK-59135).
    """
    from pyspark.sql.metrics import ObservedMetrics, PlanMetrics  # noqa: PLC0415  an extra

    fetch: Callable[..., Iterator[Any]] = client._execute_and_fetch_as_iterator

    def answers(request: Any, *rest: Any, **named: Any) -> Iterator[Any]:
        found = fetch(request, *rest, **named)
        if not request.plan.command.pipeline_command.HasField("start_run"):
            return found
        return (x for x in found if not isinstance(x, PlanMetrics | ObservedMetrics))

    client._execute_and_fetch_as_iterator = answers
