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


HEAPS = """
import ctypes, io, threading
from raftlog.world.memory import keep_large_blocks

def heaps():
    work = lambda: [bytearray(100_000) for _ in range(50)]
    started = [threading.Thread(target=work) for _ in range(4)]
    for thread in started: thread.start()
    for thread in started: thread.join()
    library = ctypes.CDLL(None)
    library.open_memstream.restype = ctypes.c_void_p
    pointer, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = library.open_memstream(ctypes.byref(pointer), ctypes.byref(size))
    library.malloc_info(0, ctypes.c_void_p(stream))
    library.fclose(ctypes.c_void_p(stream))
    return pointer.value.count(b"<heap nr")

if {is_set}: keep_large_blocks()
print(heaps())
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


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the C library has no mallopt elsewhere"
)
def test_threads_share_one_heap() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", HEAPS.format(is_set=is_set)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for is_set in (False, True)
    ]
    assert int(found[0]) > 1
    assert int(found[1]) == 1


def test_a_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: object())
    assert not memory.keep_large_blocks()
