"""The cluster's secret: given, remembered, or made; kept in the data directory for its owner alone.

Written straight to the file system and not through `Disk`: only a real machine has other users, and
`Disk` knows no permissions. Errors never hold any part of a secret.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from raftlog.node.settings import NodeSettings
from raftlog.node.start import Start, StartError, needs_secret
from raftlog.world import Randomness

SECRET_FILE: Final = "cluster.secret"
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4 * 1024
SECRET_BYTES_MADE: Final = 32
_OWNER_ONLY: Final = 0o600


def obtain_secret(
    settings: NodeSettings, start: Start, data_dir: Path, randomness: Randomness
) -> bytes:
    """The cluster's secret, durably in the data directory on return. Blocks.

    A given secret goes before the remembered one, so that restarting all nodes can change the
    secret. With neither, a node that begins a cluster alone makes one. Raises StartError, OSError.
    """
    given = _given(settings)
    path = data_dir / SECRET_FILE
    remembered = _read(path) if path.exists() else None
    secret = given or remembered
    if secret is None:
        if needs_secret(start):
            raise StartError(_MISSING)
        secret = randomness.token(SECRET_BYTES_MADE).hex().encode()
    if secret != remembered:
        _write(path, secret)
    return secret


_MISSING: Final = (
    "a cluster of several nodes needs a secret that all of them know: put the same one (at least "
    f"{SECRET_BYTES_MIN} characters, such as `openssl rand -hex 32` prints) into a file on each "
    "and name it by --cluster-secret-file, or set RAFTLOG_CLUSTER_SECRET; a node that runs already "
    f"keeps it as {SECRET_FILE} in its data directory"
)


def _given(settings: NodeSettings) -> bytes | None:
    if settings.cluster_secret is not None:
        return _checked(settings.cluster_secret.encode(), "the cluster secret that was given")
    if settings.cluster_secret_file is not None:
        return _read(Path(settings.cluster_secret_file))
    return None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return _checked(file.read(SECRET_BYTES_MAX + 2), f"the cluster secret in {path}")


def _checked(secret: bytes, what: str) -> bytes:
    # Editors and `echo` end a file with a newline, which is no part of the secret.
    secret = secret.strip()
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise StartError(
            f"{what} has {'more' if len(secret) > SECRET_BYTES_MAX else 'fewer'} than "
            f"{SECRET_BYTES_MAX if len(secret) > SECRET_BYTES_MAX else SECRET_BYTES_MIN} characters"
        )
    return secret


def _write(path: Path, secret: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    # Created with these permissions: at no moment can another user open the file.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
