"""What hooks add to a step of a millisecond and more. `bench.py` starts a process of its own for each case.

With one thread for the device, the host has the other core: what hooks do is hidden as long as the device has work. So
beside the times this says for which part of the time the device's thread was not running. With all cores for the
device, the host's work is taken from it: so this says for how long the host's thread was running.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import bench
import interleaved

_TASKS = Path("/proc/self/task")


class Watched:
    """A contestant, and for how long threads were running in each turn.

    Args:
        run: The contestant.

    Attributes:
        host: For how many microseconds a step this thread was running.
        idle: For which part of the time the busiest other thread was not. Where one thread computes for the device,
            the device was idle then, but for what a thread spins before it sleeps.
    """

    def __init__(self, run: interleaved.Run) -> None:
        self._run = run
        self.host: list[float] = []
        self.idle: list[float] = []

    def __call__(self, steps: int) -> None:
        """Makes steps."""
        start, before, own = time.perf_counter(), _busy_secs(), time.thread_time()
        self._run(steps)
        self.host.append((time.thread_time() - own) / steps * 1e6)
        secs = time.perf_counter() - start
        busy = max((value - before.get(thread, 0.0) for thread, value in _busy_secs().items()), default=0.0)
        self.idle.append(max(1 - busy / secs, 0.0))


def tells_threads() -> bool:
    """Whether this system says for how long each thread has run."""
    try:
        return int((_TASKS / str(threading.get_native_id()) / "schedstat").read_text().split()[0]) > 0
    except OSError:
        return False


def _busy_secs() -> dict[str, float]:
    """Returns for how long each thread but this one has run."""
    found = {}
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        if task.name != str(threading.get_native_id()):
            with contextlib.suppress(OSError):  # It has ended.
                found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measure(case: bench.Case, *, rounds: int, steps: int) -> tuple[dict[str, interleaved.Row], bench.Columns]:
    """Times a longer step: the bare one twice, which shows how well this machine can tell two contestants apart.

    Args:
        case: Which.
        rounds: How many rounds.
        steps: In a turn. With few, its beginning and its end show, where the device waits for anybody's host.

    Returns:
        The rows, and what is known of the threads.
    """
    with contextlib.ExitStack() as stack:
        made = bench.Contestants(stack, **case.batch)
        makers: dict[str, Callable[[], interleaved.Run]] = {
            bench.BARE: made.bare,
            bench.WHOLE: lambda: made.monitored(bench.MONITORED[bench.WHOLE]),
            f"{bench.BARE}, again": made.bare,
            bench.HAND_NAN: lambda: made.by_hand(checks_nan=True),
        }
        runs = {name: Watched(make()) for name, make in makers.items()}
        for run in runs.values():
            run(75)  # So that hooks fire within a turn, where the host is ahead of the device, as in a training.
        rows = interleaved.measure(runs, rounds=rounds, steps=steps, references=(bench.BARE, bench.HAND_NAN))
        columns = {bench.HOST: {name: statistics.median(run.host[2:]) for name, run in runs.items()}}
        if tells_threads() and case.environment == bench.ONE_THREAD:
            columns[bench.IDLE] = {name: 100 * statistics.median(run.idle[2:]) for name, run in runs.items()}
        return rows, columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=list(bench.LONG))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    case = bench.LONG[args.case]
    given = {name: os.environ[name] for name in bench.ONE_THREAD if name in os.environ}
    if given != case.environment:
        parser.error(f"the case wants the environment {case.environment}, this is {given}")
    bench.log_to_nowhere()
    rows, columns = measure(case, rounds=args.rounds, steps=args.steps)
    if args.json:
        found = {"rows": {name: row._asdict() for name, row in rows.items()}, "columns": columns}
        args.json.write_text(json.dumps(found))
    print(bench.long_table(rows, columns))


if __name__ == "__main__":
    main()
