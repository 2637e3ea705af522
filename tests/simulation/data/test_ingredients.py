"""Ingredients are drawn by seed, one independent of the other, and those kept out are not."""

from __future__ import annotations

import pytest

from tests.simulation.data import ingredients
from tests.simulation.data.histories import Cast
from tests.simulation.data.ingredients import (
    ALL,
    KEPT_OUT,
    LOSSES,
    STORAGE_LOSSES,
    Ingredient,
    draw,
)

SEEDS = range(200)


def test_what_is_kept_out_is_not_drawn_by_the_checks() -> None:
    drawn = frozenset().union(*(draw(seed, ingredients.drawn()) for seed in SEEDS))
    assert drawn == ALL - KEPT_OUT.keys()


def test_an_ingredient_does_not_change_the_draw_of_the_others() -> None:
    for seed in SEEDS:
        for each in Ingredient:
            if each not in {Ingredient.RETENTION, Ingredient.MIN_ISR, *LOSSES}:
                assert draw(seed, ALL - {each}) == draw(seed, ALL) - {each}


def test_some_histories_have_none_and_none_has_all() -> None:
    sizes = [len(draw(seed, ALL)) for seed in SEEDS]
    assert min(sizes) == 0
    assert max(sizes) < len(ALL)


@pytest.mark.parametrize("needy", [each for each in Ingredient if each.needs_storage])
def test_no_storage_is_lost_where_the_promises_need_it(needy: Ingredient) -> None:
    for seed in SEEDS:
        cast = Cast.draw(seed, ingredients.compatible(ALL & {needy, *STORAGE_LOSSES}))
        if needy in cast.ingredients:
            assert not cast.ingredients & STORAGE_LOSSES
            assert not cast.rates.wipe_per_s
            assert not cast.data_faults.rot_per_s


def test_a_cast_without_ingredients_is_that_of_its_seed() -> None:
    assert Cast.draw(7, frozenset()) == Cast.draw(7)


def test_names_are_parsed() -> None:
    assert ingredients.parse("rot-many,clocks") == {Ingredient.ROT_MANY, Ingredient.CLOCKS}
    assert ingredients.parse("none") == frozenset()
    assert ingredients.parse("all") == ALL
    with pytest.raises(ValueError, match="no-such"):
        ingredients.parse("no-such")
