"""Threads that decode by a new type at the same moment. The child process shows a crash."""

from __future__ import annotations

import signal
import subprocess
import sys

import msgspec
import pytest

from raftlog.record.decoders import json_decoder

SHAPES = """
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    name: str = ""
    numbers: dict[str, int] = {}

class Middle(msgspec.Struct):
    inner: Inner = msgspec.field(default_factory=Inner)
    inners: tuple[Inner, ...] = ()

class Outer(msgspec.Struct):
    middle: Middle = msgspec.field(default_factory=Middle)
    middles: dict[str, Middle] = {}
"""
RACE = """
import sys, threading, types
from raftlog.record.decoders import json_decoder
sys.setswitchinterval(1e-6)

def decode(kind, start):
    start.wait()
    json_decoder(kind).decode(b'{"middle": {"inner": {}}}')

for number in range(100):
    module = sys.modules[f"shapes{number}"] = types.ModuleType(f"shapes{number}")
    exec(sys.argv[1], vars(module))
    start = threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(module.Outer, start)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class Shape(msgspec.Struct):
    number: int


def test_decoder_is_made_once_for_a_type() -> None:
    assert json_decoder(Shape) is json_decoder(Shape)
    assert json_decoder(Shape).decode(b'{"number": 3}') == Shape(3)
    assert json_decoder(dict[int, str]) is json_decoder(dict[int, str])


@pytest.mark.parametrize("other", [b"[1]", b'{"number": "3"}', b"{", b""])
def test_other_bytes_are_refused(other: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        json_decoder(Shape).decode(other)


def test_threads_decode_by_a_new_type_at_once() -> None:
    command = [sys.executable, "-c", RACE, SHAPES]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != -signal.SIGSEGV, "two threads made the same description"
    assert (ended.returncode, ended.stderr) == (0, "")
