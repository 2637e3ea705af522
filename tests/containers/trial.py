"""The steps of `scripts/trial-docker`: each prints a line with its time; a failed one ends all."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import Final

import aiohttp
import yaml
from raftlog_client import Admin, Consumer, Producer

from tests.containers.compose import Project, Service, parse_project
from tests.containers.engine import Container, ContainerError, Engine
from tests.containers.images import BASE, IMAGE, ROOT, Store, build_image, make_bases
from tests.containers.oci import ImageConfig, image_config

COMPOSE: Final = ROOT / "docker" / "compose.yaml"
MEGABYTE: Final = 1_000_000
SIZE_MB_MAX: Final = 60
USER: Final = 10001
READY_S: Final = 60.0
READ_S: Final = 60.0
POLL_S: Final = 0.1
TOPIC: Final = "trial"
PARTITIONS: Final = 6
RECORDS: Final = 2_000
COMPILERS_AND_PIP: Final = ("cc", "gcc", "g++", "c++", "clang", "ld", "as", "make", "pip", "pip3")
PROGRAMS: Final = (
    "import shutil, importlib.util as u;"
    f"print([n for n in {COMPILERS_AND_PIP} if shutil.which(n)]"
    " + [m for m in ('pip', 'setuptools', 'ensurepip') if u.find_spec(m)])"
)


class TrialError(Exception):
    """A step did not end as it must."""


@contextmanager
def step(text: str) -> Iterator[list[str]]:
    """Print a step and its time; strings appended to the yielded list are added to its line."""
    began = time.monotonic()
    details: list[str] = []
    ending = "FAILED"
    try:
        yield details
        ending = "ok"
    finally:
        line = "; ".join([text, *details])
        print(f"{ending:6} {time.monotonic() - began:6.1f} s  {line}", flush=True)


def build(store: Store) -> None:
    """Build the image. Raises TrialError if it is too large, BuildError."""
    with step("base of Debian") as details:
        details.append("from the cache" if make_bases(store) else "made by debootstrap")
    with step("image built by docker/Dockerfile"):
        build_image(store)
    with step(f"image at most {SIZE_MB_MAX} MB over its base") as details:
        base, image = store.bytes_of(BASE), store.bytes_of(IMAGE)
        over_mb = (image - base) / MEGABYTE
        details.append(f"{over_mb:.1f} MB over {base / MEGABYTE:.1f} MB")
        _check(over_mb <= SIZE_MB_MAX, f"{over_mb:.1f} MB over its base")


async def run(store: Store) -> int:
    """Run the compose file's services and judge the cluster; the exit code."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    directory = Path(tempfile.mkdtemp(prefix="raftlog-containers-", dir=environ.get("BENCH_DIR")))
    project = parse_project(yaml.safe_load(COMPOSE.read_text(encoding="utf-8")))
    try:
        with store.mounted(IMAGE) as image:
            await _run_project(project, image_config(store.inspect(IMAGE)), image, directory)
    finally:
        shutil.rmtree(directory)
    print("the image and the compose file do as they say")
    return 0


async def _run_project(project: Project, config: ImageConfig, image: Path, directory: Path) -> None:
    for name in project.secret_files.values():
        secret = directory / name
        secret.write_text(f"{secrets.token_hex(32)}\n")
        shutil.chown(secret, USER, USER)
        secret.chmod(0o600)
    _check(config.has_health_check, "the image has no HEALTHCHECK")
    engine = Engine(project, config, image, directory, files=directory)
    try:
        async with engine:
            await _judge(engine)
    except BaseException:
        for container in engine.containers.values():
            print(f"--- the log of {container.service.name} ends with:\n{container.tail()}")
        raise


async def _judge(engine: Engine) -> None:
    containers = list(engine.containers.values())
    with step(f"{len(containers)} containers healthy and ready") as details:
        await _wait(engine, lambda: _all_healthy(containers), "health checks")
        await _wait(engine, lambda: _all_ready(containers), "/ready")
        details.append("started, probed and supervised as docker/compose.yaml says")
    for container in containers:
        with step(f"{container.service.name} is confined") as details:
            details.append(await _check_confinement(container))
    with step(f"{RECORDS} records with acks=all, read back"):
        await _create_topic(containers)
        written = await _produce(containers, "first")
        await _check_records(containers, written)
    with step("published ports serve") as details:
        details.append(await _check_published_ports(containers))
    with step("`raftlog cluster health` in a container"):
        await _answer(containers[0], "raftlog", "cluster", "health")
    victim = containers[1]
    with step(f"{victim.service.name} killed, back by its restart policy") as details:
        await victim.kill("KILL")
        written += await _produce(containers, "second")
        await _wait(engine, lambda: _is_back(victim), "the restart")
        await _wait(engine, lambda: _all_ready(containers), "/ready")
        await _check_records(containers, written)
        details.append(f"{len(written)} records read back")
    lost = containers[2].service
    with step(f"{lost.name} lost its volume, whole again by --replace") as details:
        changed = replace(lost, environment=replacing(lost, containers))
        await engine.recreate(changed, with_new_volumes=True)
        await _wait(engine, lambda: _all_ready(containers), "/ready")
        await _answer(containers[0], "raftlog", "cluster", "health")
        await _check_records(containers, written)
        details.append(f"{len(written)} records read back")
    with step(f"{lost.name} starts again as the compose file says"):
        await engine.recreate(lost, with_new_volumes=False)
        await _wait(engine, lambda: _all_ready(containers), "/ready")
    containers = list(engine.containers.values())
    with step("stopped by SIGTERM within the grace period"):
        await engine.stop()
        codes = {one.service.name: one.exit_codes[-1] for one in containers}
        _check(set(codes.values()) == {0}, f"exit codes {codes}")


def replacing(lost: Service, containers: list[Container]) -> dict[str, str]:
    """The variables of a service in the place of its lost self, as docs/containers.md says."""
    others = [_address(one) for one in containers if one.service.name != lost.name]
    node_id = lost.name.rpartition("-")[2]
    changes = {"RAFTLOG_VOTERS": "", "RAFTLOG_JOIN": ",".join(others), "RAFTLOG_REPLACE": node_id}
    return {**lost.environment, **changes}


async def _wait(engine: Engine, condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(READY_S):
            while not await condition():
                engine.check()
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TrialError(f"{what}: not within {READY_S:.0f} s") from None


async def _all_healthy(containers: list[Container]) -> bool:
    return all(one.health is not None and one.health.status == "healthy" for one in containers)


async def _is_back(container: Container) -> bool:
    return container.starts > 1 and await _all_healthy([container])


async def _all_ready(containers: list[Container]) -> bool:
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for container in containers:
            try:
                async with session.get(f"http://{_address(container)}/ready") as answer:
                    if answer.status != 200:
                        return False
            except (aiohttp.ClientError, TimeoutError):
                return False
    return True


async def _check_confinement(container: Container) -> str:
    """User, capabilities, root file system, programs: as the process in the container sees them."""
    lines = "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/1/status"
    shell = await _answer(container, "sh", "-c", f"id -u; {lines}")
    facts = shell.split()
    expected = [str(USER), "CapBnd:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    _check(sorted(facts) == sorted(expected), f"the process has {facts}")
    limits = await container.limits()
    given = (container.service.memory_bytes_max, container.service.processes_max)
    _check(limits == given, f"memory and processes are limited to {limits}, not {given}")
    for path in ("/new", "/opt/raftlog/new", "/tmp/new", "/etc/new"):
        output = await container.execute(["sh", "-c", f": > {path}"])
        refused = output.code != 0 and "Read-only file system" in output.text
        _check(refused, f"writing {path}: {output.text or 'succeeded'}")
    await _answer(container, "sh", "-c", ": > /var/lib/raftlog/new && rm /var/lib/raftlog/new")
    found = await _answer(container, "python", "-c", PROGRAMS)
    _check(found == "[]", f"the image has {found}")
    return f"user {USER}, no capability, read-only root, neither compiler nor pip"


async def _check_published_ports(containers: list[Container]) -> str:
    texts = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READY_S)) as session:
        for container in containers:
            for port in container.service.ports:
                url = f"http://{port.host}:{port.host_port}/v1/cluster"
                async with session.get(url) as answer:
                    _check(answer.status == 200, f"{url}: {await answer.text()}")
                texts.append(f"{port.host}:{port.host_port}")
    _check(bool(texts), "the compose file publishes no port")
    return ", ".join(texts)


async def _create_topic(containers: list[Container]) -> None:
    async with Admin(bootstrap_servers=_address(containers[0])) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=len(containers))


async def _produce(containers: list[Container], label: str) -> list[bytes]:
    values = [f"{label} {number}".encode() for number in range(RECORDS)]
    async with Producer(bootstrap_servers=_address(containers[0]), acks="all") as producer:
        await asyncio.gather(*(producer.send_and_wait(TOPIC, value) for value in values))
    return values


async def _check_records(containers: list[Container], written: list[bytes]) -> None:
    """The log holds each record once, as read by way of the last node."""
    servers = _address(containers[-1])
    async with Admin(bootstrap_servers=servers) as admin:
        ends = [found.end_offset for found in (await admin.offsets([TOPIC])).values()]
    _check(sum(ends) == len(written), f"{sum(ends)} records stored, {len(written)} written")
    read: list[bytes | None] = []
    async with Consumer(TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        try:
            async with asyncio.timeout(READ_S):
                while len(read) < len(written):
                    read.append((await consumer.getone()).value)
        except TimeoutError:
            raise TrialError(f"{len(read)} of {len(written)} records read") from None
    _check(set(read) == set(written), "the records read differ from those written")


def _address(container: Container) -> str:
    # The name of the service, so that the client connects as one inside of the network does.
    return f"{container.service.hostname}:8082"


async def _answer(container: Container, *command: str) -> str:
    output = await container.execute(command)
    if output.code:
        raise ContainerError(f"{container.service.name}: {command} ended with {output}")
    return output.text


def _check(is_right: bool, text: str) -> None:
    if not is_right:
        raise TrialError(text)
