"""The cluster's secret is given, remembered, or made, and kept only for its owner.

A file in the data directory holds a secret. While the secret of a running cluster is changed, it
holds two, a line for each. The first is used to prove, both are accepted. A running node rereads
the file.

Written straight to the file system and not through `Disk`, because only a real machine has other
users, and `Disk` knows no permissions. Errors never hold any part of a secret.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import string
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.node.settings import NodeSettings
from raftlog.node.start import Restart, Start, StartError, needs_secret
from raftlog.peer.auth import KEYS_MAX
from raftlog.world import Randomness

SECRET_FILE: Final = "cluster.secret"
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4 * 1024
SECRET_BYTES_MADE: Final = 32
STRENGTH_BITS_MIN: Final = 56
"""Least `strength_bits`. 16 random hexadecimal digits pass, the weakest secret that may be meant
seriously, which the cost of a guess (auth.derive_key) puts out of reach."""
REREAD_S: Final = 5.0
"""How often a running node looks at the file of its secret."""
_OWNER_ONLY: Final = 0o600

Secrets: TypeAlias = tuple[bytes, ...]
"""One or two secrets, the first to prove with, all to accept."""

logger = logging.getLogger(__name__)


def obtain_secrets(
    settings: NodeSettings, start: Start, data_dir: Path, randomness: Randomness
) -> Secrets:
    """The cluster's secrets, durable in the data directory on return of a first start. Blocks.

    Given secrets override the remembered secrets. With neither, a node that begins a cluster alone
    makes a secret. A restart may still be refused, so its secrets are kept by `keep_secrets`.
    Raises StartError, OSError.
    """
    path = data_dir / SECRET_FILE
    remembered = _read(path) if path.exists() else None
    given = _given(settings)
    if given is None:
        if remembered is not None:
            _warn_if_weak(remembered)
            return remembered
        if needs_secret(start):
            raise StartError(_MISSING)
        given = (randomness.token(SECRET_BYTES_MADE).hex().encode(),)
    _check_strength(given, remembered)
    if not isinstance(start, Restart):
        keep_secrets(data_dir, given)
    return given


def keep_secrets(data_dir: Path, secrets: Secrets) -> None:
    """Keep the secrets in the data directory, durably, for later starts. Blocks. Raises OSError,
    StartError."""
    path = data_dir / SECRET_FILE
    if not path.exists() or _read(path) != secrets:
        _write(path, b"".join(secret + b"\n" for secret in secrets))


class SecretFile:
    """The secrets file of a running node, read again when an operator has changed it."""

    def __init__(self, settings: NodeSettings, data_dir: Path, secrets: Secrets) -> None:
        """`secrets` are those in use."""
        self._data_dir = data_dir
        given = settings.cluster_secret_file
        self.path = data_dir / SECRET_FILE if given is None else Path(given)
        self.is_fixed = settings.cluster_secret is not None
        """Whether the secret was given as such, so that no file counts."""
        self._secrets = secrets
        self._reported = ""

    def reread(self) -> Secrets | None:
        """The secrets to use from now on. None if they are unchanged. Blocks. An unusable file
        changes nothing. Each reason is logged once."""
        if self.is_fixed:
            return None
        try:
            found = _read(self.path)
            if found == self._secrets:
                self._reported = ""
                return None
            _check_strength(found, self._secrets)
            keep_secrets(self._data_dir, found)
        except (StartError, OSError) as error:
            if str(error) != self._reported:
                self._reported = str(error)
                logger.error("the cluster's secret stays as it is: %s", error)
            return None
        self._secrets = found
        return found


def strength_bits(secret: bytes) -> float:
    """An estimate, from above, of how many bits of chance are in a secret.

    Counts what repeats, or runs on as in `abcd` and `1111`, as one bit a character. Words of a
    language are not recognised.
    """
    alphabet = sum(len(kind) for kind in _KINDS if not kind.isdisjoint(secret))
    if not frozenset(secret) - _HEXADECIMAL:
        alphabet = 16 if frozenset(secret) - _DIGITS else 10
    if frozenset(secret) - _ANY_KIND:
        alphabet += 64
    bits_each = math.log2(max(alphabet, 2))
    bits = 0.0
    for index in range(len(secret)):
        newest = secret[max(index - 2, 0) : index + 1]
        steps = {after - before for before, after in pairwise(newest)}
        runs_on = len(newest) == 3 and steps in ({-1}, {0}, {1})
        repeats = len(newest) == 3 and secret.find(newest, 0, index) >= 0
        bits += 1.0 if runs_on or repeats else bits_each
    return bits


_DIGITS: Final = frozenset(string.digits.encode())
_HEXADECIMAL: Final = frozenset(string.hexdigits.encode())
_KINDS: Final = (
    frozenset(string.ascii_lowercase.encode()),
    frozenset(string.ascii_uppercase.encode()),
    _DIGITS,
    frozenset(string.punctuation.encode() + b" "),
)
_ANY_KIND: Final = frozenset().union(*_KINDS)
_HOW_TO_MAKE: Final = "`openssl rand -hex 32` prints a good one"
_MISSING: Final = (
    "a cluster of several nodes needs a secret that all of them know: put the same one "
    f"({_HOW_TO_MAKE}) into a file of mode 600 on each and name it by --cluster-secret-file, or "
    "set RAFTLOG_CLUSTER_SECRET; a node that runs already "
    f"keeps it as {SECRET_FILE} in its data directory"
)


def _given(settings: NodeSettings) -> Secrets | None:
    if settings.cluster_secret is not None:
        return _parsed(settings.cluster_secret.encode(), "the cluster secret that was given")
    if settings.cluster_secret_file is not None:
        return _read(Path(settings.cluster_secret_file))
    return None


def _read(path: Path) -> Secrets:
    with path.open("rb") as file:
        _check_mode(path, os.fstat(file.fileno()))
        content = file.read(KEYS_MAX * (SECRET_BYTES_MAX + 2) + 1)
    return _parsed(content, f"the cluster secret in {path}")


def _check_mode(path: Path, status: os.stat_result) -> None:
    """Check the mode as PostgreSQL does for private keys.

    A group may read the file if root owns it. So systems that mount secrets for a group
    (Kubernetes:
    `defaultMode: 0440` and `fsGroup`) work.
    """
    mode = stat.S_IMODE(status.st_mode)
    is_roots = status.st_uid == 0
    if mode & (0o037 if is_roots else 0o077):
        raise StartError(
            f"{path} holds the cluster's secret, and other users of the machine have access to it "
            f"(mode {mode:03o}): run `chmod 600 {path}`. Mode 640 is right where root owns the "
            "file and the node reads it by its group, such as a secret mounted by Kubernetes "
            "(defaultMode: 0440)"
        )


def _parsed(content: bytes, what: str) -> Secrets:
    # Editors and `echo` end a file with a newline, which is no part of the secret.
    secrets = tuple(line.strip() for line in content.splitlines() if line.strip()) or (b"",)
    if len(secrets) > KEYS_MAX:
        raise StartError(
            f"{what} has more than {KEYS_MAX} lines: one secret, or, while it is changed, two"
        )
    for secret in secrets:
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            is_long = len(secret) > SECRET_BYTES_MAX
            raise StartError(
                f"{what} has {'more' if is_long else 'fewer'} than "
                f"{SECRET_BYTES_MAX if is_long else SECRET_BYTES_MIN} characters: {_HOW_TO_MAKE}"
            )
    return tuple(dict.fromkeys(secrets))


def _check_strength(given: Secrets, known: Secrets | None) -> None:
    """Refuse new secrets that are weak. Warn of known weak secrets. Raises StartError."""
    if any(_is_weak(secret) for secret in given if secret not in (known or ())):
        raise StartError(f"the cluster secret is too easy to guess: {_HOW_TO_MAKE}")
    _warn_if_weak(given)


def _is_weak(secret: bytes) -> bool:
    return strength_bits(secret) < STRENGTH_BITS_MIN


def _warn_if_weak(secrets: Secrets) -> None:
    # A running cluster must restart after an upgrade, however weak its secret is.
    if any(map(_is_weak, secrets)):
        logger.warning(
            "the cluster's secret is too easy to guess: change it (%s; "
            "docs/operations.md, Change the secret)",
            _HOW_TO_MAKE,
        )


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    # Created with these permissions, so at no moment can another user open the file.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
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
