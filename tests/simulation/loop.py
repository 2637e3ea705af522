"""A deterministic asyncio event loop over virtual time.

Callbacks run in the order of their scheduling, timers in the order of their deadlines and, between
equal deadlines, of creation. Nothing waits: without a ready callback, time moves on to the next
deadline. Each callback costs a microsecond, so that code polling the time makes progress.

Real I/O, threads and signals fail the run, as does any unhandled exception. Tasks and futures hash
by their number, not by their address: asyncio (and code under test) iterates over sets of these.
`still` stops the garbage collector during a run, since finalizers would run at another time in the
next process.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import sys
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar

from tests.garbage import exempt_existing
from tests.simulation.handles import Handle, SimulatedFuture, SimulatedTask
from tests.simulation.life import Life, SimulationError, current_life
from tests.simulation.node_transport import ListeningSocket

T = TypeVar("T")

CALLBACK_S: Final = 1e-6
START_S: Final = 1000.0
STEPS_MAX: Final = 20_000_000
TIME_S_MAX: Final = 3600.0
"""Of virtual time, in one run."""
SWEEP_TASKS_MIN: Final = 1024
SWEEP_TIMERS_MIN: Final = 1024
FAILURES_MAX: Final = 20
"""Remembered of one run; the first one counts."""
SHOWN_MAX: Final = 8
"""Callbacks and tasks named by an error."""


@contextmanager
def still() -> Iterator[None]:
    """No garbage collection in this context but explicit ones."""
    collecting = gc.isenabled()
    gc.disable()
    exempt_existing()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. `run` is called once."""

    def __init__(self, *, steps_max: int = STEPS_MAX, time_s_max: float = TIME_S_MAX) -> None:
        self.now = START_S
        self.steps = 0
        """Number of callbacks run."""
        self.numbers = 0
        """Tasks and futures made so far."""
        self.after_event: Callable[[Life], None] | None = None
        """Called after every callback of a living life; an exception from it ends the run."""
        self.failures: list[BaseException] = []
        """Unhandled exceptions, the first one first."""
        self._steps_max = steps_max
        self._end = START_S + time_s_max
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._timer_number = 0
        self._timers_cancelled = 0
        self._tasks: list[SimulatedTask[Any]] = []
        self._grave: list[Handle] = []
        """Objects of dead lives: kept so that their disposal runs nothing while others live."""
        self._sweep_at = SWEEP_TASKS_MIN
        self._running = False
        self._closed = False

    # Called by asyncio and the code under test

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(
            self.now,
            callback,
            args,
            self,
            contextvars.copy_context() if context is None else context,
        )
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        # There are no other threads: `run_in_executor` is refused.
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(
            when, callback, args, self, contextvars.copy_context() if context is None else context
        )
        handle._scheduled = True
        # The simulated network names the context of the life in which a packet arrives.
        handle.is_own_timer = context is None
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        return handle

    def timer_cancelled(self) -> None:
        """Count a cancelled timer; drop all cancelled ones once a majority."""
        self._timers_cancelled += 1
        if self._timers_cancelled > SWEEP_TIMERS_MIN and self._timers_cancelled * 2 > len(
            self._timers
        ):
            # In place: `run` holds on to the list. The order of times and numbers is total, so
            # rebuilding the heap changes nothing in the order of running.
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def create_task(  # type: ignore[override]  # no generator-based coroutines here
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = SimulatedTask(coro, self, name, context)
        # asyncio itself holds tasks weakly; a dropped task would run its `finally` blocks.
        self._tasks.append(task)
        if len(self._tasks) >= self._sweep_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._sweep_at = max(SWEEP_TASKS_MIN, 2 * len(self._tasks))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an unhandled failure, unless its life has ended."""
        culprit = context.get("task") or context.get("future")
        life = getattr(culprit, "life", None) or current_life()
        if self._closed or (life is not None and not life.alive):
            return
        error = context.get("exception")
        self.fail(SimulationError(f"{life}: {context.get('message')}: {error!r}"), error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def create_server(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        """Listen on a simulated socket; a real one is refused."""
        listening = options.get("sock")
        if not isinstance(listening, ListeningSocket):
            return _refuse("create_server")(self)
        return listening.listen(protocol_factory)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: generators end with their lives."""

    # Running

    def fail(self, error: BaseException, cause: BaseException | None = None) -> None:
        """Let the run end with this error (the first one given counts)."""
        if cause is not None:
            error.__cause__ = cause
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(error)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end; raise unhandled exceptions. Once per loop, then `close`."""
        assert not self._running
        assert not self._closed
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        self._running = True
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main, name="main")
            self._run_until(task)
            return task.result()
        finally:
            asyncio._set_running_loop(None)
            self._running = False
            sys.set_asyncgen_hooks(*hooks)

    def _run_until(self, main: asyncio.Task[Any]) -> None:
        ready = self._ready
        timers = self._timers
        while not main.done():
            if not ready or (timers and timers[0][0] <= self.now):
                self._make_ready()
            handle = ready.popleft() if ready else None
            if handle is None or handle._cancelled:
                continue
            life = handle.life
            if life is not None:
                if not life.alive:
                    self._grave.append(handle)
                    continue
                if life.paused:
                    life.held.append(handle)
                    continue
            self.steps += 1
            if self.steps > self._steps_max:
                self._give_up(f"no end after {self._steps_max} callbacks", handle)
            self.now += CALLBACK_S
            try:
                handle._context.run(handle._callback, *handle._args)
            except BaseException as error:
                # The exception that unwinds a killed life's code is no failure.
                if life is None or life.alive or isinstance(error, KeyboardInterrupt):
                    self.fail(error)
            if life is not None and life.alive:
                self._ran(life)
            if self.failures:
                raise self.failures[0]

    def _make_ready(self) -> None:
        """Move due timers to the ready queue; if both are empty, move time to the next timer."""
        timers = self._timers
        if not self._ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)[2]._scheduled = False
                self._timers_cancelled -= 1
            if not timers:
                raise SimulationError(f"at {self.now:.6f} s: nothing will ever happen again")
            self.now = max(self.now, timers[0][0])
            if self.now > self._end:
                self._give_up(f"no end after {self._end - START_S:g} virtual seconds", None)
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._timers_cancelled -= 1
            else:
                self._ready.append(handle)

    def _ran(self, life: Life) -> None:
        life.callbacks += 1
        if self.after_event is not None:
            self.after_event(life)
        if life.fuse:
            life.fuse -= 1
            if not life.fuse:
                life.kill()

    def resume(self, life: Life) -> None:
        """Resume a paused life: first the callbacks held back, in order."""
        life.paused = False
        if life.suspended_at is not None:
            self._postpone_timers(life, self.now - life.suspended_at)
            life.suspended_at = None
        self._ready.extendleft(reversed(life.held))
        life.held.clear()

    def suspend(self, life: Life) -> None:
        """Pause a life with its machine: the timers stand still, too, until `resume`.

        So does an event loop's clock (CLOCK_MONOTONIC) while a machine sleeps.
        """
        life.paused = True
        life.suspended_at = self.now

    def _postpone_timers(self, life: Life, seconds: float) -> None:
        """Move all timers of a life, those held back included, on by the time of its sleep."""
        timers = self._timers
        for index, (_, number, handle) in enumerate(timers):
            if handle.life is life and handle.is_own_timer:
                handle._when += seconds
                timers[index] = (handle._when, number, handle)
        heapq.heapify(timers)
        asleep_since = self.now - seconds
        held, life.held = life.held, deque()
        for handle in held:
            if not (handle.is_own_timer and handle._when > asleep_since):
                life.held.append(handle)
            elif not handle._cancelled:
                self._timer_number += 1
                handle._when += seconds
                handle._scheduled = True
                heapq.heappush(timers, (handle._when, self._timer_number, handle))

    def _give_up(self, why: str, handle: Handle | None) -> NoReturn:
        waiting = [handle, *list(self._ready)[:SHOWN_MAX]] if handle is not None else []
        names = [f"{each.life}: {each._callback!r}" for each in waiting]
        tasks = [repr(task) for task in self._tasks if not task.done()][:SHOWN_MAX]
        raise SimulationError("\n  ".join([f"at {self.now:.6f} s: {why}; next:", *names, *tasks]))

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        life = current_life()
        if not self._closed and (life is None or life.alive):
            self.create_task(generator.aclose())

    # The end

    def check(self) -> None:
        """Raise failures of unawaited tasks. At the end, while the lives still count."""
        gc.collect()
        for task in self._tasks:
            life = task.life
            if (life is None or life.alive) and task.done() and task._log_traceback:
                task._log_traceback = False
                raise SimulationError(f"{task!r} failed") from task.exception()
        if self.failures:
            raise self.failures[0]

    def close(self) -> None:
        """Drop everything without a sound.

        The lives must have ended: code of their coroutines during the close, such as `finally`
        blocks, must find disks and connections dead. No run ever observes this code.
        """
        if self._closed:
            return
        self._closed = True
        disabled = logging.root.manager.disable
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        logging.disable(logging.CRITICAL)
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # `finally` blocks may create tasks, which never start.
                while self._tasks:
                    tasks, self._tasks = self._tasks, []
                    while tasks:
                        _dispose(tasks.pop())
                self._grave.clear()
                self._ready.clear()
                self._timers.clear()
                gc.collect()
        finally:
            asyncio._set_running_loop(None)
            logging.disable(disabled)
            sys.unraisablehook = hook


def _dispose(task: SimulatedTask[Any]) -> None:
    if task.done():
        task._log_traceback = False
        return
    if task.life is not None:
        task.life.held.clear()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # of the C task
    coroutine = task.get_coro()
    context = contextvars.copy_context() if task.life is None else task.life.context
    # Whatever this raises or awaits is ignored.
    with suppress(BaseException):
        context.run(coroutine.close)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(self: SimulatedLoop, *_: object, **__: object) -> NoReturn:
        error = SimulationError(f"loop.{name}: there is no real I/O, thread or signal in here")
        # The code under test may swallow the exception.
        self.fail(error)
        raise error

    return refused


for _name in (
    *("run_in_executor", "set_default_executor", "add_signal_handler", "remove_signal_handler"),
    *("getaddrinfo", "getnameinfo", "create_connection", "sendfile", "start_tls"),
    *("create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
    *("connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_shell", "subprocess_exec", "add_reader", "add_writer"),
    *("remove_reader", "remove_writer", "sock_recv", "sock_recv_into", "sock_sendall"),
    *("sock_recvfrom", "sock_recvfrom_into", "sock_sendto", "sock_connect", "sock_accept"),
    *("sock_sendfile", "run_forever", "run_until_complete", "stop"),
):
    setattr(SimulatedLoop, _name, _refuse(_name))
