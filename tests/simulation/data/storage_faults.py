"""Faults of storage that random histories have as ingredients: lost and rotten files, disk errors.

Each comes only while every replica is up and in sync, and leaves a good copy of every record:
promise 1 holds for `min.insync.replicas - 1` lost replicas.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.record.header import parse_header
from tests.simulation.data.data_world import DataWorld, Part
from tests.simulation.data.ingredients import Ingredient, Ingredients
from tests.simulation.data.nemesis import ORDER_S, DataNemesis
from tests.simulation.data.recurring import Recurring

RATE_PER_S: Final = 0.25
DERIVED: Final = (".index", ".snapshot", "leader-epoch-checkpoint", "checkpoints.json")
TIME_INDEX: Final = ".timeindex"
CHECKPOINTS: Final = "checkpoints.json"
ERRORS: Final = (
    ("append", ".log"),
    ("append", "metadata/journal"),
    ("create", "replicas/"),
    ("sync_directory", "replicas/"),
    ("rename", "leader-epoch-checkpoint"),
    ("truncate", ".log"),
    ("read", ".log"),
)
"""Operations that fail once, by a part of the path."""
ORDERED: Final = "as ordered"
"""In the reason of a node that ended after such an error."""


class StorageFaults(Recurring):
    """Lets disks lose, rot and fail until `stop`."""

    def __init__(self, data: DataWorld, ingredients: Ingredients, nemesis: DataNemesis) -> None:
        super().__init__(data, "storage faults")
        self._ingredients = ingredients
        self._nemesis = nemesis

    def start(self) -> None:
        """Begin."""
        kinds = (
            (Ingredient.PARTIAL_WIPES, self._partial_wipe),
            (Ingredient.ROT_MANY, self._rot_many),
            (Ingredient.ROT_DERIVED, self._rot_derived),
            (Ingredient.ROT_TIME_INDEX, self._rot_time_index),
            (Ingredient.DISK_ERRORS, self._disk_error),
            (Ingredient.CHECKPOINT_ERRORS, self._checkpoint_error),
        )
        self.begin(
            [(RATE_PER_S, fault) for ingredient, fault in kinds if ingredient in self._ingredients]
        )

    def _held(self, node_id: int) -> list[Part]:
        return [part for part in self.data.parts if node_id in self.data.row(part).replicas]

    async def _partial_wipe(self) -> bool:
        """The node comes back with its metadata, and without some or all of its data."""
        victim = self.random.choice(self.data.nodes.node_ids)
        held = self._held(victim)
        kind = self.random.choice(("one", "all", "checkpoints", "all and checkpoints"))
        lost = [self.random.choice(held)] if kind == "one" and held else held
        if kind == "checkpoints":
            lost = []
        if not held or not all(map(self._nemesis.may_hurt, lost)) or not self._nemesis.is_calm():
            return False
        if self.data.has_async and not lost:
            # The file also tells that the power was cut: without it, no log may be believed.
            return False
        disk = self.data.world.disk(victim)
        self.data.nodes.kill(victim, power=self.random.random() < 0.3 and not self.data.has_async)
        self.data.world.trace(f"disk {victim} loses {kind}")
        for part in lost:
            topic_id, number = self.data.key(part)
            disk.lose(f"replicas/{topic_id}/{number}")
            self.data.replicas.damaged(victim, self.data.key(part))
            self._nemesis.hurt(part)
        if "checkpoints" in kind and disk.exists(CHECKPOINTS):
            disk.lose(CHECKPOINTS)
        return True

    async def _rot_many(self) -> bool:
        """Two or all replicas lose a batch each, and no two of them the same."""
        part = self.part()
        if not self._nemesis.may_hurt(part):
            return False
        replicas = list(map(int, self.data.row(part).replicas))
        victims = self.random.sample(replicas, self.random.randint(2, len(replicas)))
        taken: list[tuple[int, int]] = []
        for victim in victims:
            found = [
                each
                for each in self._batches(victim, part)
                if all(each[1] <= start or each[0] >= end for start, end in taken)
            ]
            if not found:
                break
            start, end, path, position, size = self.random.choice(found)
            taken.append((start, end))
            self.data.flip(victim, part, path, 8 * position + self.random.randrange(8 * size))
            self._nemesis.rotten(part, victim, path)
        if taken:
            self._nemesis.hurt(part)
        return bool(taken)

    def _batches(self, node_id: int, part: Part) -> list[tuple[int, int, str, int, int]]:
        """Batches of all finished segments: offsets, file, position and size."""
        found = []
        for path in self.data.paths(node_id, part)[:-1]:
            content, position = self.data.world.disk(node_id).contents(path), 0
            while position < len(content):
                header = parse_header(content, position)
                offsets = int(header.base_offset), int(header.next_offset)
                found.append((*offsets, path, position, header.size_bytes))
                position += header.size_bytes
        return found

    async def _rot_derived(self) -> bool:
        return await self._flip_one(DERIVED)

    async def _rot_time_index(self) -> bool:
        return await self._flip_one((TIME_INDEX,))

    async def _flip_one(self, endings: tuple[str, ...]) -> bool:
        """Flip a bit of a file that is derived from the log, half of the time before a start."""
        victim = self.random.choice(self.data.nodes.node_ids)
        disk = self.data.world.disk(victim)
        parts = self._held(victim)
        if not parts or not all(map(self._nemesis.may_hurt, parts)):
            return False
        paths = [
            path
            for path in disk.paths()
            if path.endswith(endings) and not path.startswith("damaged/") and disk.contents(path)
        ]
        if not paths:
            return False
        path = self.random.choice(paths)
        if self.random.random() < 0.5:
            self.data.nodes.kill(victim)
        self.data.world.trace(f"rot {path} on {victim}")
        disk.flip_bit(path, self.random.randrange(8 * len(disk.contents(path))))
        for part in parts:
            self._nemesis.hurt(part)
        return True

    async def _disk_error(self) -> bool:
        return await self._fail_next(*self.random.choice(ERRORS))

    async def _checkpoint_error(self) -> bool:
        return await self._fail_next("rename", CHECKPOINTS)

    async def _fail_next(self, operation: str, path: str) -> bool:
        """The next such operation fails, once."""
        victim = self.random.choice(self.data.nodes.node_ids)
        parts = self._held(victim)
        if not parts or not all(map(self._nemesis.may_hurt, parts)):
            return False
        disk = self.data.world.disk(victim)
        self.data.world.trace(f"disk {victim} fails its next {operation} of {path}")
        disk.fail_next(operation, path)
        for part in parts:
            self._nemesis.hurt(part)
            self.data.replicas.damaged(victim, self.data.key(part))
        await asyncio.sleep(ORDER_S)
        disk.forget_orders()
        return True
