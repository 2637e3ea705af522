"""A node with a sampler of its Python code's processor time.

python -m bench.replication.sampled serve --data-dir DIR ...

A timer of processor time interrupts the main thread, and the current frame is counted. Time in a C
function counts for the calling line. Frames of threads are not sampled, but their time advances the
timer too. SIGUSR1 starts the sampler, and stops it again.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

INTERVAL_S: Final = 0.002
SERVE_SAMPLED: Final = (sys.executable, "-m", "bench.replication.sampled", "serve")


@contextmanager
def sampling(samples: dict[str, int]) -> Iterator[None]:
    """Count the frames of the main thread while the block runs."""

    def sample(_number: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            where = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{frame.f_lineno} {code.co_name}"
            samples[where] = samples.get(where, 0) + 1

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def samples_of(data_dir: Path) -> Path:
    """The file for a node's samples, beside its data directory."""
    return data_dir.with_name(f"{data_dir.name}.samples")


def main() -> None:
    """Run the command line; sample from one SIGUSR1 to the next, then write."""
    from raftlog.cli.main import main as command  # noqa: PLC0415 - the nodes' own import time

    path = samples_of(Path(sys.argv[sys.argv.index("--data-dir") + 1]))
    samples: dict[str, int] = {}
    running = ExitStack()
    is_on = False

    def switch(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_on
        is_on = not is_on
        if is_on:
            running.enter_context(sampling(samples))
        else:
            running.close()
            path.write_text(json.dumps(samples))

    signal.signal(signal.SIGUSR1, switch)
    command()


if __name__ == "__main__":
    main()
