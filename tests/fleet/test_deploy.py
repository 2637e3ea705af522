"""A deployment of one real node on the fake machine: set up, upgraded, taken back, stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from raftlog.cluster.membership import Probes
from raftlog.cluster.process import free_ports
from raftlog.fleet.deploy import Deployment
from raftlog.fleet.deploy_plan import Target, plan
from raftlog.fleet.drivers.ssh_host import SECRET_PATH, SshHost
from raftlog.fleet.errors import FleetError
from raftlog.fleet.release import Release, read_release
from tests.fleet.wheels import copy_pip, write_wheel

TIMEOUT_S = 60.0
REAL_PYTHON = Path(sys.executable).resolve()
SERVES = "def main():\n    from raftlog.cli.main import main\n    main()\n"
ENDS = """
def main():
    import sys
    sys.exit("this release is broken" if "serve" in sys.argv else 0)
"""


def release(directory: Path, version: str, code: str) -> Release:
    """A release with this checkout's raftlog, or with a command that only ends."""
    directory.mkdir()
    copy_pip(directory)
    write_wheel(directory, "raftlog", version, code=code, command="raftlog", module="launcher")
    # The environment's compiled modules need its own Python.
    python = f"cp3{sys.version_info[1]}"
    write_wheel(directory, "needs-python", tags=f"{python}-{python}-linux_{os.uname().machine}")
    return read_release(directory)


async def test_a_node_is_set_up_upgraded_taken_back_and_stopped(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    python = machine / f"bin/python3.{sys.version_info[1]}"
    python.symlink_to(REAL_PYTHON)
    (port,) = free_ports("127.0.0.1", 1)
    lines: list[str] = []
    targets = [Target.parse("vm1=127.0.0.1")]
    old = release(tmp_path / "old", "1.0", SERVES)
    new = release(tmp_path / "new", "1.1", SERVES)
    broken = release(tmp_path / "broken", "1.2", ENDS)
    async with SshHost("vm1") as host, Deployment(targets, lines.append, timeout_s=TIMEOUT_S) as it:
        with pytest.raises(FleetError, match="runs no node"):
            await it.upgrade(await it.inspect(), old)

        # As changed by an operator: the test's node listens on the loopback address alone.
        (node,) = plan(await it.inspect(), port)
        settings = node.settings.replace("0.0.0.0", "127.0.0.1")
        await host.configure("node-1", settings)
        assert await it.up(await it.inspect(), old, port) == [f"127.0.0.1:{port}"]
        assert await host.configurations() == {"node-1": settings}
        first = await host.status("node-1")
        assert first.version == old.version
        secret = await host.read_file(SECRET_PATH)
        assert secret is not None and len(secret.strip()) == 64

        await it.up(await it.inspect(), new, port)
        assert await host.status("node-1") == first
        assert "--upgrade brings it" in lines[-1]

        await it.upgrade(await it.inspect(), new)
        assert (await host.status("node-1")).version == new.version
        await it.upgrade(await it.inspect(), new)
        assert "nothing to do" in lines[-1]

        with pytest.raises(FleetError, match=f"runs {new.version} again") as caught:
            await it.upgrade(await it.inspect(), broken)
        assert "this release is broken" in str(caught.value)
        running = await host.status("node-1")
        assert (running.version, await host.current()) == (new.version, new.version)

        await it.down(await it.inspect())
        assert not (await host.status("node-1")).is_active
        assert "stopped cleanly" in (machine / "node.log").read_text()
        probes = Probes()
        assert await probes.why_not_ready(f"127.0.0.1:{port}") is not None
        await probes.close()

        assert await it.up(await it.inspect(), new, port) == [f"127.0.0.1:{port}"]
        assert await host.read_file(SECRET_PATH) == secret
        with pytest.raises(FleetError, match="no other node is left"):
            await it.replace(await it.inspect(), 1, new, port)
        await it.down(await it.inspect())
    assert os.listdir(machine / "var/lib/raftlog") == ["node-1"]  # noqa: PTH208 - names alone
