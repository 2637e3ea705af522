"""Run random histories with a planted bug: how many seeds find it, and which is the first.

    scripts/simulate planted-transactions 4-joins-the-decided 0:200
    scripts/simulate planted-transactions all 1000:1200 2        each bug, with two processes

Every bug must be found within 200 seeds. The exit code tells whether some bug was not found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.simulation.runner import finding, run_planted
from tests.simulation.transactions.histories import replay
from tests.simulation.transactions.planted_bugs import PLANTED, planted_bug


def find(name: str, seed: int) -> str | None:
    """What the history finds of the planted bug, if anything."""
    return finding(planted_bug(name).planted(), replay, seed)


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    return run_planted(tuple(map(str, PLANTED)), find, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
