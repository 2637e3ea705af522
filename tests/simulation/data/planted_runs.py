"""Run random histories with a planted bug: how many seeds find it, and which is the first.

    scripts/simulate planted zombie-epoch-not-fenced 0:200
    scripts/simulate planted all 1000:1200 2        each bug, with two processes

Every bug of `BLIND_SPOTS` must be found within 200 seeds of any range, with the ingredients that
the checks draw and those of its recorded seed. The exit code tells whether some bug was not found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from tests.simulation.data import ingredients
from tests.simulation.data.histories import replay
from tests.simulation.data.ingredients import Ingredients
from tests.simulation.data.planted_bugs import BLIND_SPOTS, blind_spot

SIGN_CHARACTERS: Final = 160


def find(name: str, seed: int, exactly: Ingredients | None = None) -> str | None:
    """What the history finds of the planted bug, if anything."""
    bug = blind_spot(name)
    allowed = ingredients.drawn() | ingredients.parse(bug.ingredients)
    try:
        with bug.planted():
            replay(seed, allowed=allowed, exactly=exactly)
    except AssertionError as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:SIGN_CHARACTERS]
    return None


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    name, seeds = arguments[0], arguments[1] if len(arguments) > 1 else "0:200"
    workers = int(arguments[2]) if len(arguments) > 2 else None
    if name not in ("all", *map(str, BLIND_SPOTS)):
        print("all or one of:", *BLIND_SPOTS)
        return 2
    first, _, end = seeds.partition(":")
    numbers = range(int(first), int(end or int(first) + 1))
    is_missed = False
    with ProcessPoolExecutor(workers) as pool:
        for each in BLIND_SPOTS if name == "all" else (blind_spot(name),):
            started = time.time()
            signs = list(pool.map(partial(find, each.name), numbers, chunksize=5))
            found = {seed: sign for seed, sign in zip(numbers, signs, strict=True) if sign}
            is_missed = is_missed or not found
            print(
                f"{each.name}: {len(found)} of {len(signs)} seeds {list(found)[:8]}, "
                f"{time.time() - started:.0f} s",
                flush=True,
            )
            for seed, sign in list(found.items())[:1]:
                print(f"    {seed}: {sign}", flush=True)
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
