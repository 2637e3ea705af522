"""The limit of open files, which sockets and the files of the data directory share.

A node without a free descriptor can open no segment and cannot sync a directory. So connections
take a share of the limit, and storage has the rest.
"""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from typing import Final

OPEN_FILES_MAX: Final = 1 << 20
"""Largest limit for one process."""
LISTENER_SHARE: Final = 4
"""A listener has at most this fraction of the open files. A node has two listeners."""

logger = logging.getLogger(__name__)


def connections_max(wanted: int) -> int:
    """Raise the soft limit of open files to the hard limit. Return a listener's bound.

    The bound is `wanted` connections, or a quarter of the limit with a warning in the log.
    """
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if limit == resource.RLIM_INFINITY:
        return wanted
    if limit < raised:
        with suppress(OSError, ValueError):  # some systems allow less than their hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            limit = raised
    bound = max(1, limit // LISTENER_SHARE)
    if bound < wanted:
        logger.warning(
            "at most %d files can be open. Each listener takes at most %d connections instead of "
            "%d. Raise the limit (LimitNOFILE= of systemd, or ulimit -n)",
            limit,
            bound,
            wanted,
        )
    return min(bound, wanted)
