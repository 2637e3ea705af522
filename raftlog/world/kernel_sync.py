"""Syncs of files by the kernel, without a thread of this process (Linux, io_submit(2)).

A thread that waits in `fdatasync` needs the interpreter twice, to start the sync and to notify the
event loop of its end, while the loop wants the interpreter as well. Here one system call starts the
syncs of several files, kernel threads execute them, and an eventfd wakes the event loop. Measured
beside threads in docs/decisions/group-commit.md.

The standard library has no binding for the calls, so they are made through ctypes. They fail as
`fdatasync` does, with the same promise that each error of the device is reported once for each open
file. Where the kernel, its sandbox or the file system offers no such sync, `begin` raises before
any sync has started.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

SYNCS_MAX: Final = 128
"""Most syncs at once."""
NOT_BEGUN: Final = -1
"""Result of a file that the kernel did not accept, in place of an errno."""
_FDATASYNC: Final = 3
_NOTIFIES: Final = 1
_GENERIC: Final = (0, 1, 2, 4)
_NUMBERS: Final = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
}
"""Numbers of io_setup, io_destroy, io_submit and io_getevents (all little-endian machines)."""


class KernelSyncError(Exception):
    """The kernel does not sync that way, and no sync has started."""


class _Request(ctypes.Structure):
    """struct iocb."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("notified", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Waiter(NamedTuple):
    """Syncs that were started together."""

    results: dict[int, int]
    """Results by place in the call."""
    wanted: int
    future: asyncio.Future[list[int]]


class KernelSyncs:
    """The syncs of one process. For one event loop at a time. Raises KernelSyncError."""

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine()) if hasattr(os, "eventfd") else None
        if numbers is None:
            raise KernelSyncError("not on this machine")
        self._setup, self._destroy, self._submit, self._events_of = numbers
        # PyDLL keeps the interpreter. None of the calls waits, except those of `close`.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_uint64(0)
        if self._call(self._setup, ctypes.c_uint(SYNCS_MAX), ctypes.byref(self._context)) != 0:
            raise KernelSyncError(os.strerror(ctypes.get_errno()))
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests = [_Request() for _ in range(SYNCS_MAX)]
        for number, request in enumerate(self._requests):
            request.data, request.opcode = number, _FDATASYNC
            request.flags, request.notified = _NOTIFIES, self._eventfd
        self._addresses = [ctypes.addressof(request) for request in self._requests]
        self._free = list(range(SYNCS_MAX))
        self._submitted = (ctypes.c_void_p * SYNCS_MAX)()
        self._events = (_Event * SYNCS_MAX)()
        self._waiting: dict[int, tuple[_Waiter, int]] = {}
        """Waiter and place in the call, by the number of the request."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, descriptors: Sequence[int]) -> asyncio.Future[list[int]]:
        """Start to sync open files. The future returns 0, an errno or NOT_BEGUN for each.

        Cancelling the future does not stop the syncs, so the files must stay open. Raises
        KernelSyncError if no sync has started.
        """
        count = len(descriptors)
        if count > len(self._free):
            raise KernelSyncError(f"{SYNCS_MAX - len(self._free)} syncs are under way")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._listen(loop)
        numbers = [self._free.pop() for _ in range(count)]
        for place, (number, descriptor) in enumerate(zip(numbers, descriptors, strict=True)):
            self._requests[number].descriptor = descriptor
            self._submitted[place] = self._addresses[number]
        # The kernel accepts requests in order, and stops at the first that it rejects.
        begun = self._call(self._submit, self._context, ctypes.c_long(count), self._submitted)
        self._free += numbers[max(begun, 0) :]
        if begun <= 0:
            raise KernelSyncError(os.strerror(ctypes.get_errno()))
        not_begun = dict.fromkeys(range(begun, count), NOT_BEGUN)
        waiter = _Waiter(not_begun, count, loop.create_future())
        for place, number in enumerate(numbers[:begun]):
            self._waiting[number] = waiter, place
        return waiter.future

    def close(self) -> None:
        """Wait for the syncs under way, and release all. Closing twice is allowed."""
        if self._eventfd < 0:
            return
        call = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        while self._waiting:
            self._reap(call, 1)
        self._listen(None)
        call(self._destroy, self._context)
        eventfd, self._eventfd = self._eventfd, -1
        os.close(eventfd)

    def _listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        self._loop = loop
        if loop is not None:
            loop.add_reader(self._eventfd, self._on_ended)

    def _on_ended(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        self._reap(self._call, 0)

    def _reap(self, call: Callable[..., int], at_least: int) -> None:
        """Take the results that are there."""
        least, most = ctypes.c_long(at_least), ctypes.c_long(SYNCS_MAX)
        count = call(self._events_of, self._context, least, most, self._events, None)
        for event in self._events[: max(count, 0)]:
            waiter, place = self._waiting.pop(event.data)
            self._free.append(event.data)
            waiter.results[place] = -event.result
            if len(waiter.results) == waiter.wanted and not waiter.future.done():
                # A loop closed since then has no waiter left.
                with suppress(RuntimeError):
                    waiter.future.set_result([waiter.results[at] for at in range(waiter.wanted)])
