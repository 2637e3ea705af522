"""The ten-minute suite tries a third of the examples of property tests."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = 100
EXAMPLES_QUICK: Final = 33
EXAMPLES_MIN: Final = 10


def load_profile(*, quick: bool) -> None:
    """Set the defaults of property tests, before their modules are imported."""
    settings.register_profile(
        "tests",
        max_examples=EXAMPLES_QUICK if quick else EXAMPLES,
        # A busy machine makes any example slow. A slow example is no defect.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")


def examples(count: int) -> int:
    """The examples of a property test that has `count` in the whole suite."""
    return min(count, max(EXAMPLES_MIN, count * settings().max_examples // EXAMPLES))
