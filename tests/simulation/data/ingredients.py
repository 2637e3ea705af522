"""Ingredients of a random history: kinds of faults and operations, each one drawn or not per seed.

A seed draws each ingredient from a stream of its own, so that switching one on or off changes only
the histories with this ingredient. `KEPT_OUT` is the one place that names the ingredients that
the checks do not draw yet, each with its reason: remove the entry once the defect is mended.

    scripts/simulate data 0:200 --with rot-many,clocks     also draws these two
    scripts/simulate data 0:200 --only compaction          every history has exactly these
    scripts/simulate data 17 --only none                   no ingredient at all
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final


class Ingredient(StrEnum):
    """Something that a history has, or has not."""

    COMPACTION = "compaction"
    """A compacted topic with keyed records: superseded records may go, and no others."""
    MIN_ISR = "min-isr"
    """`min.insync.replicas` of topics and of the cluster changes. No replica loses its storage."""
    SINGLE_REPLICA = "single-replica"
    """A topic of one replica."""
    MORE_PARTITIONS = "more-partitions"
    """Topics grow while their partitions are written."""
    LONE_ASYNC = "lone-async"
    """A topic of one replica with flush=async, the power of its node is cut, and an operator
    accepts the loss."""
    MANY_PRODUCERS = "many-producers"
    """More producers than a partition remembers: no active one is forgotten for another."""
    LINKS = "links"
    """Single links are cut, one way or both: connectivity is not transitive."""
    CLOCKS = "clocks"
    """The wall clock of one node is wrong by hours to days, by jumps and at its starts."""
    SUSPENSIONS = "suspensions"
    """Machines sleep: the monotonic clock of their processes goes on, and their timers do not."""
    PARTIAL_WIPES = "partial-wipes"
    """A node loses files of its data, and keeps its metadata: one replica, all, checkpoints."""
    ROT_MANY = "rot-many"
    """Several replicas of one partition rot, each in other batches: each record has a good copy."""
    ROT_DERIVED = "rot-derived"
    """Indexes of offsets, producer snapshots and checkpoints rot."""
    ROT_TIME_INDEX = "rot-time-index"
    """Indexes of times rot."""
    DISK_ERRORS = "disk-errors"
    """A write, a rename or a sync of a directory fails with an error of the disk."""
    CHECKPOINT_ERRORS = "checkpoint-errors"
    """The checkpoint file of a node cannot be replaced."""
    TIMES = "times"
    """Records have times of their own, and the first record at or after a time is looked up once
    all is well again."""
    EARLY_LOOKUPS = "early-lookups"
    """Times are looked up during the faults, too: wants `TIMES`."""
    TOMBSTONES = "tombstones"
    """Some records of the compacted topic have no value, and go for good: wants `COMPACTION`."""
    DELETIONS = "deletions"
    """Records deleted on request stay deleted once the request was acknowledged."""
    RETENTION = "retention"
    """A topic keeps its records for some seconds: older ones go, younger ones stay."""
    PRODUCER_EPOCHS = "producer-epochs"
    """Producers continue with the next epoch of their id, and their zombies write on."""
    UNCLEAN = "unclean"
    """Unclean elections are allowed: a partition may lose what it says that it may have lost."""

    STUTTER = "stutter"
    """A follower dies again and again while it catches up, behind slow links: what it said before,
    and what was said of it, arrives after its next start."""
    FAILOVERS = "failovers"
    """The leaders of one partition die one after the other, each with records of its own."""

    @property
    def needs_storage(self) -> bool:
        """Whether the ingredient's promises hold only while no replica loses its storage."""
        return self in (Ingredient.MIN_ISR, Ingredient.UNCLEAN)


Ingredients = frozenset[Ingredient]

ALL: Final = frozenset(Ingredient)
KEPT_OUT: Final[dict[Ingredient, str]] = {}
"""Ingredients that the checks do not draw yet, because of a defect that they find, with a seed."""
STORAGE_LOSSES: Final = frozenset(
    {
        Ingredient.PARTIAL_WIPES,
        Ingredient.ROT_MANY,
        Ingredient.ROT_DERIVED,
        Ingredient.ROT_TIME_INDEX,
        Ingredient.DISK_ERRORS,
        Ingredient.CHECKPOINT_ERRORS,
    }
)
ASYNC_EXCLUDES: Final = frozenset(
    {*STORAGE_LOSSES, Ingredient.UNCLEAN, Ingredient.MIN_ISR, Ingredient.LONE_ASYNC}
)
"""Not beside topics with flush=async: several replicas without power are as many as may be lost."""
LOSSES: Final = frozenset({Ingredient.UNCLEAN, Ingredient.LONE_ASYNC})
"""Partitions may lose records, as they say."""
SHARES: Final = (0.0, 0.15, 0.3)
"""Share of the ingredients in a history: some histories have none, and none has all."""


def drawn() -> Ingredients:
    """The ingredients that the checks draw from."""
    return ALL - KEPT_OUT.keys()


def draw(seed: int, allowed: Ingredients) -> Ingredients:
    """The ingredients of one history. Those that exclude each other do not meet."""
    share = random.Random(f"ingredients {seed}").choice(SHARES)
    # Each by a stream of its own: a new ingredient leaves the others of the seed as they are.
    picked = frozenset(
        each for each in Ingredient if random.Random(f"{each.value} {seed}").random() < share
    )
    return compatible(picked & allowed)


def compatible(picked: Ingredients) -> Ingredients:
    """Without the ingredients that cannot be judged beside another one."""
    if any(each.needs_storage for each in picked):
        picked -= STORAGE_LOSSES
    if Ingredient.RETENTION in picked:
        # What a time limit deletes cannot be told from what a wrong clock deletes.
        picked -= {Ingredient.CLOCKS}
    if picked & LOSSES:
        # The records that a loss takes with it are not known by key or time.
        picked -= {Ingredient.COMPACTION, Ingredient.DELETIONS, Ingredient.PRODUCER_EPOCHS}
    return picked


def parse(names: str) -> Ingredients:
    """`rot-many,clocks`, `all` or `none`. Raises ValueError."""
    if names == "all":
        return ALL
    return frozenset(Ingredient(name) for name in names.split(",") if name not in ("", "none"))


def listed(picked: Collection[Ingredient]) -> Sequence[str]:
    """Names in a fixed order."""
    return sorted(each.value for each in picked)
