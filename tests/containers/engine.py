"""Runs the services of a compose file with runc: namespaces, mounts, probes, restarts, ports.

The caller gives this process network, mount and process namespaces of its own (`unshare`, see
scripts/trial-docker): bridge, mounts and containers end with them, whatever happens.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.wires import Wires
from tests.containers.compose import Port, Project, Service
from tests.containers.health import Health, Restarts
from tests.containers.oci import ImageConfig, Places, runtime_config

COMMAND_S: Final = 60.0
RELAY_BYTES_MAX: Final = 64 * 1024
LOG_TAIL_BYTES: Final = 4000
NAMESPACES: Final = Path("/run/netns")


class ContainerError(Exception):
    """A container or a command in it did not do its part; the message has the output."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a command in a container."""

    code: int
    text: str
    """Standard output, then standard error."""


@dataclass(slots=True)
class Container:
    """One service, its container, and the current start of the container."""

    service: Service
    config: ImageConfig
    bundle: Path
    name: str
    """runc's id, which is the name of the control group, too."""
    state: Path
    """runc's directory."""
    restarts: Restarts = field(init=False)
    health: Health | None = None
    starts: int = 0
    exit_codes: list[int] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the operator's stop: no further start."""

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.service.restart)

    @property
    def log(self) -> Path:
        """Standard output and error of all starts."""
        return self.bundle / "log"

    async def supervise(self) -> None:
        """Start, probe and restart the container by its policy."""
        while True:
            began = time.monotonic()
            code = await self._run_once(began)
            self.exit_codes.append(code)
            delay = self.restarts.delay_s(time.monotonic() - began)
            if delay is None:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self.stopping.wait()
            if self.stopping.is_set():
                return

    async def execute(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Output:
        """Run a command in the container, as its user. Raises TimeoutError."""
        return await self._runc("exec", self.name, *command, timeout_s=timeout_s)

    async def limits(self) -> tuple[int, int]:
        """Most bytes of memory and most processes, as the kernel reports the limits."""
        found = json.loads(await self._control("events", "--stats", self.name))["data"]
        return found["memory"]["usage"]["limit"], found["pids"]["limit"]

    async def kill(self, signal: str) -> None:
        """Send a signal to the first process of the container. Raises ContainerError."""
        await self._control("kill", self.name, signal)

    def tail(self) -> str:
        """The end of the log; empty before the first start."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    async def _run_once(self, began: float) -> int:
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command("run", "--bundle", str(self.bundle), self.name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.starts += 1
        probes = asyncio.create_task(self._probe(began))
        try:
            code = await process.wait()
        finally:
            self.health = None
            await self._control("delete", "--force", self.name)
            await _cancel(probes)
        return code

    async def _probe(self, began: float) -> None:
        check = self.service.health
        if check is None:
            return
        health = self.health = Health(check)
        while True:
            await asyncio.sleep(check.interval_s)
            age = time.monotonic() - began
            try:
                succeeded = (await self.execute(check.command, check.timeout_s)).code == 0
            except TimeoutError:
                succeeded = False
            health.record(succeeded=succeeded, age_s=age)

    async def _control(self, *arguments: str) -> str:
        output = await self._runc(*arguments)
        if output.code:
            raise ContainerError(f"runc {' '.join(arguments)}: {output.text}")
        return output.text

    async def _runc(self, *arguments: str, timeout_s: float = COMMAND_S) -> Output:
        process = await asyncio.create_subprocess_exec(
            *self._command(*arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Output(process.returncode, (out + err).decode(errors="replace").strip())

    def _command(self, *arguments: str) -> tuple[str, ...]:
        return ("runc", "--root", str(self.state), *arguments)


class Engine:
    """The containers of a project, started on entry and stopped on exit. A context manager."""

    def __init__(
        self, project: Project, config: ImageConfig, image: Path, directory: Path, files: Path
    ) -> None:
        """`image` is the root of the image's files, `directory` holds all that is written, and
        `files` is the directory to which paths in the compose file are relative.
        """
        self.containers: dict[str, Container] = {}
        self._project = project
        self._config = config
        self._image = image
        self._directory = directory
        self._files = files
        self._stack = AsyncExitStack()
        self._places: dict[str, Places] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Engine:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def stop(self) -> None:
        """Stop all containers: the stop signal, the grace period, SIGKILL."""
        await asyncio.gather(*(self._stop(one) for one in self.containers.values()))

    async def recreate(self, service: Service, *, with_new_volumes: bool) -> None:
        """Stop the container of this name, and start one as `service` now says."""
        await self._stop(self.containers[service.name])
        if with_new_volumes:
            for path, name in service.volumes.items():
                shutil.rmtree(self._places[service.name].volumes[name])
                self._make_volume(name, path)
        self._start_container(service)

    def check(self) -> None:
        """Raise the error that ended the supervision of a container, if any."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    async def _start(self, stack: AsyncExitStack) -> None:
        _run("ip", "link", "set", "lo", "up")
        NAMESPACES.mkdir(exist_ok=True)
        # Names of namespaces are files; these are for this process alone.
        _run("mount", "-t", "tmpfs", "tmpfs", str(NAMESPACES))
        wires = stack.enter_context(Wires(len(self._project.services)))
        hosts = self._directory / "hosts"
        places = list(zip(self._project.services, wires.places, strict=True))
        lines = ["127.0.0.1 localhost", *(f"{at.host} {one.hostname}" for one, at in places)]
        hosts.write_text("\n".join([*lines, ""]))
        # The trial's own client finds the nodes by their advertised names.
        _run("mount", "--bind", str(hosts), "/etc/hosts")
        for service, place in places:
            root = self._mount_root(stack, self._directory / service.name)
            self._places[service.name] = Places(
                root=root,
                namespace=NAMESPACES / place.prefix[-1],
                hosts=hosts,
                volumes={
                    name: self._make_volume(name, path) for path, name in service.volumes.items()
                },
                secrets={
                    one: self._files / self._project.secret_files[one] for one in service.secrets
                },
            )
            for port in service.ports:
                stack.push_async_callback(_close, await _publish(port, place.host))
        stack.push_async_callback(self._end)
        for service in self._project.services:
            self._start_container(service)

    def _mount_root(self, stack: AsyncExitStack, bundle: Path) -> Path:
        upper, work, root = (bundle / name for name in ("upper", "work", "root"))
        for directory in (upper, work, root):
            directory.mkdir(parents=True)
        layers = f"lowerdir={self._image},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
        stack.callback(_run, "umount", str(root))
        return root

    def _start_container(self, service: Service) -> None:
        bundle = self._directory / service.name
        document = runtime_config(service, self._config, self._places[service.name])
        (bundle / "config.json").write_text(json.dumps(document, indent=1))
        name = f"{self._directory.name}-{service.name}"
        container = Container(service, self._config, bundle, name, self._directory / "runc")
        self.containers[service.name] = container
        self._tasks[service.name] = asyncio.create_task(container.supervise())

    def _make_volume(self, name: str, path: str) -> Path:
        """A new volume: as an engine does, with the owner and mode of the image's directory."""
        volume = self._directory / "volumes" / name
        volume.mkdir(parents=True)
        pattern = self._image / path.lstrip("/")
        _run("chown", f"--reference={pattern}", str(volume))
        _run("chmod", f"--reference={pattern}", str(volume))
        return volume

    async def _end(self) -> None:
        await self.stop()
        for task in self._tasks.values():
            await _cancel(task)

    async def _stop(self, container: Container) -> None:
        task = self._tasks[container.service.name]
        container.stopping.set()
        if task.done():
            return
        for signal, wait_s in (
            (container.config.stop_signal, container.service.stop_grace_s),
            ("KILL", COMMAND_S),
        ):
            # Between two starts there is nothing to signal: then the task ends by itself.
            with suppress(ContainerError):
                await container.kill(signal)
            await asyncio.wait([task], timeout=wait_s)
            if task.done():
                return
        raise ContainerError(f"{container.service.name} does not end")


async def _cancel(task: asyncio.Task[None]) -> None:
    """End a task. Raises the error with which the task had ended by itself, if any."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise ContainerError(f"{' '.join(command)}: {done.stderr.strip()}")


async def _publish(port: Port, address: str) -> asyncio.Server:
    """Listen on the port of the host, and pass each connection on to the container."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(address, port.port)
        except OSError:
            # As an engine's proxy does while the container is down: the client sees the end.
            writer.close()
            return
        await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))

    return await asyncio.start_server(serve, port.host, port.host_port)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(RELAY_BYTES_MAX):
            writer.write(data)
            await writer.drain()
    except OSError:
        return  # one side is gone: closing the other tells its peer
    finally:
        writer.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
