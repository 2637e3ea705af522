"""Runs a command with long time slices.

`python -m tests.long_slices COMMAND` is for tests that compute. They share two cores with more
processes than cores, and in the kernel's slices of 3 ms each of them finds the caches cold. Four
histories of the simulator at once take a third more of the processor than two. Linux takes slices
of 0.1 to 100 ms since 6.12, see sched(7) and sched_setattr(2). A process that has waited runs
before one in a long slice. Older kernels ignore the length, and no other system has the call.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

SLICE_NS: Final = 12_000_000
"""Longer slices would save more, but a nice process then waits for its next slice for seconds."""
_NUMBERS: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call by machine."""


def lengthen_slices() -> None:
    """Give this process and its later children long slices, if the system can."""
    number = _NUMBERS.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr has size, policy, flags, nice, priority, runtime, deadline, period.
        attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
        # A refusal changes nothing.
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


if __name__ == "__main__":
    lengthen_slices()
    os.execvp(sys.argv[1], sys.argv[1:])
