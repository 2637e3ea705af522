"""Run random histories with a planted bug: how many seeds find it, and which is the first.

    scripts/simulate planted zombie-epoch-not-fenced 0:200
    scripts/simulate planted all 1000:1200 2        each bug, with two processes

Every bug of `BLIND_SPOTS` must be found within 200 seeds of any range, with the ingredients that
the checks draw and those of its recorded seed. The exit code tells whether some bug was not found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.simulation.data import ingredients
from tests.simulation.data.histories import replay
from tests.simulation.data.ingredients import Ingredients
from tests.simulation.data.planted_bugs import BLIND_SPOTS, blind_spot
from tests.simulation.runner import run_planted, sign_of


def find(name: str, seed: int, exactly: Ingredients | None = None) -> str | None:
    """What the history finds of the planted bug, if anything."""
    bug = blind_spot(name)
    allowed = ingredients.drawn() | ingredients.parse(bug.ingredients)
    try:
        with bug.planted():
            replay(seed, allowed=allowed, exactly=exactly)
    except AssertionError as error:
        return sign_of(error)
    return None


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    return run_planted(tuple(map(str, BLIND_SPOTS)), find, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
