"""Large blocks stay in the heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raftlog.world import memory

PROGRAM = """
import resource
from raftlog.world.memory import keep_large_blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytes(bytearray(1 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_large_blocks()
faults()
print(before, faults())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the C library has no mallopt elsewhere"
)
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    before, after = map(int, result.stdout.split())
    assert after * 10 < before


def test_a_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: object())
    assert not memory.keep_large_blocks()
