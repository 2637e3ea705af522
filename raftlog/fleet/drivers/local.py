"""Driver `local` runs a cluster of processes on this machine by its manager.

The manager (raftlog.cluster) of a cluster that does not run is started detached, as `raftlog
cluster up --detach` does. The settings of the file are in a separate file, named by their digest,
so the command line of each process shows which settings the node was started with.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from raftlog import __version__
from raftlog.api import manager as api
from raftlog.cluster import commands
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.layout import Layout, manager_pid, read_file, replace_file, tail
from raftlog.cluster.manifest import Flush, Manifest, NodeEntry, Plan, serve_arguments
from raftlog.fleet.drivers.driver import Machines, Tell
from raftlog.fleet.errors import FleetError, SpecError
from raftlog.fleet.spec import ClusterSpec, settings_text
from raftlog.fleet.state import NodeState

LOG_LINES_SHOWN: Final = 8
DIGEST_DIGITS: Final = 12
SETTINGS_FILES: Final = "settings-*.toml"
FLUSH: Final = "flush"
"""The one setting that the manager gives each node by a flag."""
RUNNING: Final = ("running", "paused")


class LocalDriver:
    """The nodes of one directory."""

    def __init__(self, spec: ClusterSpec, tell: Tell) -> None:
        """`tell` is called with each event of the manager. Raises SpecError."""
        assert spec.dir is not None
        if spec.version not in (None, __version__):
            raise SpecError(
                f"cluster {spec.name}: driver local runs the installed version {__version__}, not "
                f"{spec.version}",
                "Leave out `version`, and install the version that should run.",
            )
        self._spec = spec
        self._layout = Layout.at(spec.dir)
        self._tell = tell
        settings = dict(spec.settings)
        self._flush: Flush = cast("Flush", settings.pop(FLUSH, "sync"))
        self._settings = settings_text(settings)
        digest = hashlib.sha256(self._settings.encode()).hexdigest()[:DIGEST_DIGITS]
        self._settings_file = self._layout.root / SETTINGS_FILES.replace("*", digest)

    @property
    def _arguments(self) -> tuple[str, ...]:
        return ("--config", str(self._settings_file)) if self._settings else ()

    async def inspect(self) -> Machines:
        """Find the nodes of the manifest, and their processes."""
        manifest = await asyncio.to_thread(self._manifest)
        if manifest is None:
            return Machines()
        status = await self._status()
        by_id = {node.node_id: node for node in status.nodes}
        nodes = [
            self._node(manifest, entry, by_id[entry.node_id])
            for entry in manifest.nodes
            if entry.node_id in by_id
        ]
        return Machines(tuple(nodes), is_created=True)

    async def create(self) -> None:
        """Start the manager with the first voters, and wait until the cluster serves."""
        self._save_settings()
        await self._start_manager(
            Plan(
                nodes=self._spec.voter_count,
                base_port=self._spec.base_port,
                arguments=self._arguments,
                flush=self._flush,
            )
        )

    async def start(self, node_ids: Sequence[int]) -> None:
        """Start nodes. Without a manager, start all that were not stopped by a command."""
        await self._configure()
        states = {node.node_id: node.state for node in (await self._status()).nodes}
        for node_id in node_ids:
            if states.get(node_id) in RUNNING:
                continue
            # A node that does not stay up gets a new start with the settings of now.
            if states.get(node_id) != "stopped":
                await self._request(api.StopNode(node_id))
            await self._request(api.StartNode(node_id))

    async def restart(self, node_id: int) -> None:
        """Stop and start a node with the settings of the file."""
        await self._configure()
        await self._request(api.StopNode(node_id))
        await self._request(api.StartNode(node_id))

    async def join(self, host: str, servers: Sequence[str], known_ids: Sequence[int]) -> None:
        """Add a node. The manager knows the addresses, and never gives an id twice."""
        await self._configure()
        await self._request(api.AddNode(voter=False))

    async def replace(self, node_id: int, servers: Sequence[str], host: str) -> None:
        """Put an empty node in the place of a node with a lost disk.

        The old directory is kept.
        """
        await self._configure()
        await self._request(api.ReplaceNode(node_id))

    async def retire(self, node_id: int) -> str:
        """Stop a node and drop it from the manifest.

        Its data directory is moved to `lost/`.
        """
        await self._configure()
        said: list[str] = []
        await self._request(api.StopNode(node_id, forget=True), said)
        return "; ".join(said)

    async def stop_cluster(self) -> None:
        """Stop the nodes and the manager."""
        if self._manifest() is None:
            return
        try:
            await commands.stop(self._layout, self._tell)
        except ClusterError as error:
            raise FleetError(str(error), error.hint) from error

    async def failure(self, node_id: int) -> str | None:
        """Why a node does not stay up, or None while its process runs."""
        for node in (await self._status()).nodes:
            if node.node_id == node_id and node.state not in RUNNING:
                return f"{node.last_end or node.state}; {await self.log_end(node_id)}"
        return None

    async def log_end(self, node_id: int) -> str:
        """The end of a node's log, with its title."""
        path = self._layout.log(node_id)
        return "\n    ".join([f"the end of its log, {path}:", *tail(path, LOG_LINES_SHOWN)])

    async def close(self) -> None:
        """Do nothing, as nothing is kept open."""

    def _manifest(self) -> Manifest | None:
        try:
            return self._layout.load_manifest()
        except ClusterError as error:
            raise FleetError(str(error), error.hint) from error

    async def _status(self) -> api.ClusterStatus:
        if manager_pid(self._layout) is None:
            return commands.status_unmanaged(self._layout)
        document = await self._request(api.GetStatus())
        return commands.status_from(document)

    def _node(self, manifest: Manifest, entry: NodeEntry, status: api.NodeStatus) -> NodeState:
        return NodeState(
            node_id=entry.node_id,
            address=manifest.address(entry),
            is_running=status.state in RUNNING,
            why=status.last_end if status.state not in RUNNING else None,
            has_settings=self._has_settings(manifest, entry, status.pid),
            has_data=self._layout.has_begun(entry),
        )

    def _has_settings(self, manifest: Manifest, entry: NodeEntry, pid: int | None) -> bool:
        """Whether the process was started with the settings of the file."""
        if pid is None:
            return True
        try:
            content = read_file(Path(f"/proc/{pid}/cmdline"))
        except ProcessLookupError:
            content = None
        if not content:
            return True
        words = content.decode(errors="replace").split("\0")[:-1]
        data_dir = str(self._layout.data_dir(entry))
        expected = serve_arguments(
            replace(manifest, arguments=self._arguments, flush=self._flush),
            entry,
            data_dir,
            str(self._layout.secret),
            has_begun=True,
        )
        begin = words.index("--data-dir") if "--data-dir" in words else len(words)
        given = words[begin:]
        rest = given[len(expected) :]
        # The rest is from a first start (identity, address, voters).
        return given[: len(expected)] == expected and (not rest or rest[0] == "--node-id")

    async def _configure(self) -> None:
        """Have a manager run, with the file's settings for the next start of each node."""
        self._save_settings()
        known = self._manifest()
        if manager_pid(self._layout) is None:
            await self._start_manager(Plan(arguments=self._arguments, flush=self._flush))
        elif known and (known.arguments, known.flush) != (self._arguments, self._flush):
            # The request comes only then, as the manager of an earlier release does not know it.
            await self._request(api.Reconfigure(self._arguments, self._flush))
        # A node reads its settings once, so no start from now on needs the other files.
        for path in self._layout.root.glob(SETTINGS_FILES):
            if path != self._settings_file:
                with suppress(FileNotFoundError):
                    path.unlink()

    def _save_settings(self) -> None:
        self._layout.prepare()
        if self._settings and read_file(self._settings_file) is None:
            replace_file(self._settings_file, self._settings.encode())

    async def _start_manager(self, plan: Plan) -> None:
        try:
            plan.check()
            await commands.start_detached(self._layout, plan, self._tell)
        except ClusterError as error:
            raise FleetError(str(error), error.hint) from error

    async def _request(self, request: api.ControlRequest, said: list[str] | None = None) -> Any:
        try:
            return await commands.request(
                self._layout, request, self._tell if said is None else said.append
            )
        except ClusterError as error:
            raise FleetError(str(error), error.hint) from error
