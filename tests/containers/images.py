"""Makes a Debian base and builds docker/Dockerfile with it: debootstrap, buildah.

The bases stay in the user's cache directory, as images of a store that only the trial uses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/raftlog-base:1"
BUILD_BASE: Final = "localhost/raftlog-build-base:1"
IMAGE: Final = "localhost/raftlog:trial"
PACKAGES: Final = ("python3",)
BUILD_PACKAGES: Final = ("python3-venv", "binutils")
COMMAND_S: Final = 600.0
PIP_KEYS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""The settings of this machine's pip that a build takes over, besides the certificates."""
LEFT_OUT: Final = ("./dev/*", "./proc/*", "./sys/*", "./var/cache/apt/*", "./var/lib/apt/lists/*")


class BuildError(Exception):
    """A command failed; the message has the end of its output."""


def cache_directory() -> Path:
    """The user's cache directory of the trial."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "raftlog" / "containers"


class Store:
    """The images of the trial: buildah with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._options = (
            "--root",
            str(directory / "store"),
            "--runroot",
            str(directory / "run"),
            "--storage-driver",
            "vfs",
        )

    def has(self, image: str) -> bool:
        """Whether the store has the image."""
        return image in self._buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def add(self, image: str, archive: Path) -> None:
        """Make an image of one layer from an archive of a root directory."""
        container = self._buildah("from", "scratch").strip()
        try:
            self._buildah("add", "--quiet", container, str(archive), "/")
            self._buildah("commit", "--quiet", "--format", "docker", container, image)
        finally:
            self._buildah("rm", container)

    def build(self, image: str, pip_config: Path, certificates: Path | None) -> None:
        """Build docker/Dockerfile on the bases."""
        secrets = ["--secret", f"id=pip_conf,src={pip_config}"]
        if certificates is not None:
            secrets += ["--secret", f"id=pip_cert,src={certificates}"]
        self._buildah(
            "bud",
            "--isolation",
            "chroot",
            # The format that keeps HEALTHCHECK.
            "--format",
            "docker",
            "--pull-never",
            f"--build-arg=BASE={BASE}",
            f"--build-arg=BUILD_BASE={BUILD_BASE}",
            *secrets,
            "--file",
            str(ROOT / "docker" / "Dockerfile"),
            "--tag",
            image,
            str(ROOT),
        )

    def inspect(self, image: str) -> dict[str, Any]:
        """The image's configuration and manifest."""
        found = json.loads(self._buildah("inspect", "--type", "image", image))
        assert isinstance(found, dict)
        return found

    def bytes_of(self, image: str) -> int:
        """The size of the image's layers, as stored without compression."""
        manifest = json.loads(self.inspect(image)["Manifest"])
        return sum(int(layer["size"]) for layer in manifest["layers"])

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The root directory of a new container of the image; its files must not be changed."""
        container = self._buildah("from", "--pull-never", image).strip()
        try:
            yield Path(self._buildah("mount", container).strip())
        finally:
            self._buildah("rm", container)

    def prune(self) -> None:
        """Delete images that later builds have replaced."""
        for name in self._buildah(
            "images", "--filter", "dangling=true", "--format", "{{.ID}}"
        ).split():
            self._buildah("rmi", name)

    def _buildah(self, *arguments: str) -> str:
        return run("buildah", *self._options, *arguments)


def make_bases(store: Store) -> bool:
    """Make the two bases unless the store has both; returns whether the store had."""
    if store.has(BASE) and store.has(BUILD_BASE):
        return True
    with tempfile.TemporaryDirectory(prefix="raftlog-base-") as temporary:
        root, archive = Path(temporary) / "root", Path(temporary) / "root.tar"
        run(
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            _release(),
            str(root),
        )
        _pack(root, archive)
        store.add(BASE, archive)
        apt = ("chroot", str(root), "apt-get", "--quiet", "--yes")
        run(*apt, "install", "--no-install-recommends", *BUILD_PACKAGES)
        _pack(root, archive)
        store.add(BUILD_BASE, archive)
    return False


def build_image(store: Store) -> None:
    """Build the image with the package index that this machine's pip uses."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    config, certificates = pip_configuration(listed)
    with tempfile.TemporaryDirectory(prefix="raftlog-pip-") as temporary:
        path = Path(temporary) / "pip.conf"
        path.write_text(config)
        store.build(IMAGE, path, certificates)
    store.prune()


def pip_configuration(listed: str) -> tuple[str, Path | None]:
    """A pip.conf for the build, and the certificates, from the lines of `pip config list`.

    Later lines of pip's list go before earlier ones, except that the environment goes before all.
    """
    values: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        values[name.rpartition(".")[2]] = value.strip("'\"")
    lines = ["[global]", *(f"{key} = {values[key]}" for key in PIP_KEYS if key in values)]
    certificates = values.get("cert")
    if certificates is not None:
        lines.append("cert = /run/secrets/pip_cert")
    return "\n".join([*lines, ""]), None if certificates is None else Path(certificates)


def run(*command: str) -> str:
    """The standard output of a command. Raises BuildError."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-4000:]
        raise BuildError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def _release() -> str:
    """The Debian release of this machine, which reaches the packages of that release."""
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    raise BuildError("this is no Debian: /etc/os-release names no release")


def _pack(root: Path, archive: Path) -> None:
    left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    run("tar", "--directory", str(root), *left_out, "--create", "--file", str(archive), ".")
