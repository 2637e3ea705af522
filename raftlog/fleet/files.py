"""The files beside the fleet's file, for the lock, applied clusters and the secret.

```
fleet.toml            written by the operator
fleet.toml.lock       locked by an `apply` that runs
fleet.toml.applied    the clusters that were ever applied and not pruned
fleet.toml.secret     the secret by which nodes know each other (driver ssh)
```

The record serves one purpose, to find clusters and hosts that the file no longer names. Without the
record they are left alone.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from raftlog.cluster.layout import SECRET_BYTES, read_file, replace_file
from raftlog.fleet.errors import FleetError
from raftlog.fleet.spec import ClusterSpec, FleetSpec, HostEntry
from raftlog.record.decoders import json_decoder

_OWNER_ONLY: Final = 0o600


class Applied(msgspec.Struct, frozen=True):
    """The clusters of earlier runs. Unknown fields are ignored."""

    clusters: tuple[ClusterSpec, ...] = ()

    def cluster(self, name: str) -> ClusterSpec | None:
        """The cluster of this name."""
        return next((spec for spec in self.clusters if spec.name == name), None)

    def merged(self, fleet: FleetSpec) -> Applied:
        """The record at the start of a run, with all clusters and their past hosts.

        Past logs stay as well, until their entries in the catalog are `removed`.
        """
        merged = []
        for spec in fleet.cluster:
            old = self.cluster(spec.name)
            merged.append(spec if old is None else _with_past(spec, old))
        present = {spec.name for spec in fleet.cluster}
        merged += [spec for spec in self.clusters if spec.name not in present]
        return Applied(tuple(merged))

    def finished(self, fleet: FleetSpec, pruned: Sequence[str]) -> Applied:
        """The record after a run that made all as written."""
        present = {spec.name for spec in fleet.cluster}
        left = [s for s in self.clusters if s.name not in present and s.name not in pruned]
        return Applied((*fleet.cluster, *left))


class FleetFiles:
    """The files beside one fleet's file."""

    def __init__(self, file: Path) -> None:
        self.file = file.absolute()

    def path(self, suffix: str) -> Path:
        """A file beside the fleet's."""
        return self.file.with_name(f"{self.file.name}.{suffix}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other runs of `apply`. Raises FleetError, OSError."""
        path = self.path("lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise FleetError(
                    f"another apply of {self.file} runs (process {owner})",
                    "Wait for its end; a step that is under way must not be crossed.",
                ) from None
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            yield
        finally:
            # The end of the process also releases the lock. The file stays, as another run may wait
            # at its inode.
            os.close(descriptor)

    def load_applied(self) -> Applied:
        """Load the record, which is empty before the first run. Raises FleetError, OSError."""
        path = self.path("applied")
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return Applied()
        try:
            return json_decoder(Applied).decode(content)
        except msgspec.DecodeError as error:
            raise FleetError(
                f"{path} cannot be read: {error}",
                "If a newer version wrote it, use that one. Without the file, clusters that are no "
                "longer in the fleet's file are left alone.",
            ) from error

    def save_applied(self, applied: Applied) -> None:
        """Replace the record, durably. Raises OSError."""
        content = msgspec.json.format(msgspec.json.encode(applied), indent=2) + b"\n"
        replace_file(self.path("applied"), content)

    def secret(self) -> str | None:
        """The secret of the fleet's nodes, or None before the first start. Raises OSError."""
        content = read_file(self.path("secret"))
        return None if content is None else content.decode()

    def ensure_secret(self, known: str | None) -> str:
        """Keep and return the secret, which is `known` or new if there is none. Raises OSError."""
        secret = self.secret()
        if secret is None:
            secret = known or secrets.token_hex(SECRET_BYTES) + "\n"
            replace_file(self.path("secret"), secret.encode())
        return secret


def _with_past(spec: ClusterSpec, old: ClusterSpec) -> ClusterSpec:
    """The cluster with the hosts and logs that it had before."""
    hosts: dict[str, HostEntry] = {machine.name: machine for machine in old.machines}
    hosts |= {machine.name: machine for machine in spec.machines}
    logs = dict.fromkeys((*spec.listed, *old.listed))
    return replace(spec, hosts=tuple(hosts.values()), log=None, logs=tuple(logs))
