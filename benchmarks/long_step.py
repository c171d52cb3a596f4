"""What hooks add to a step of a millisecond and more. A process of its own for each case, which `bench.py` starts.

With one core for the device, the host has the other one: what hooks do is hidden as long as the device always has work.
So beside the times this says for which part of the time the device's thread did nothing, which other tenants of the
machine change much less. With all cores for the device, the host's work is taken from it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import bench
import interleaved


class Watched:
    """A contestant, and for which part of each turn no thread of the device computed.

    Args:
        run: The contestant.
    """

    def __init__(self, run: interleaved.Run) -> None:
        self._run = run
        self._idle: list[float] = []

    def __call__(self, steps: int) -> None:
        """Makes steps."""
        start, before = time.perf_counter(), _busy_secs()
        self._run(steps)
        secs = time.perf_counter() - start
        busy = max((value - before.get(thread, 0.0) for thread, value in _busy_secs().items()), default=0.0)
        self._idle.append(max(1 - busy / secs, 0.0))

    @property
    def idle(self) -> float:
        """The median of the turns, but for the first."""
        return statistics.median(self._idle[1:])


def _busy_secs() -> dict[str, float]:
    """Returns how long each thread but this one has computed; nothing where the system does not tell."""
    main, tasks = threading.get_native_id(), Path("/proc/self/task")
    found = {}
    for task in tasks.iterdir() if tasks.exists() else ():
        with contextlib.suppress(OSError):  # It has ended.
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return {name: secs for name, secs in found.items() if name != str(main)}


def measure(batch: dict[str, int], *, rounds: int, steps: int) -> tuple[dict[str, interleaved.Row], dict[str, float]]:
    """Times a longer step: the bare one twice, which shows how well this machine can tell two contestants apart.

    Args:
        batch: The arguments of `tiny_step.batch`.
        rounds: How many rounds.
        steps: In a turn. With few, its beginning and its end show, where the device waits for anybody's host.

    Returns:
        The rows, and for each for which part of the time the device did nothing.
    """
    with contextlib.ExitStack() as stack:
        made = bench.Contestants(stack, **batch)
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
        return rows, {name: run.idle for name, run in runs.items()}


def table(rows: dict[str, interleaved.Row], idle: dict[str, float] | None) -> str:
    """Returns the rows as a Markdown table, and where it is given, for which part of the time the device was idle."""
    lines = interleaved.table(rows, decimals=3).splitlines()
    if idle is None:
        return "\n".join(lines)
    cells = [" device idle |", "---:|", *(f" {idle[name]:.2%} |" for name in rows)]
    return "\n".join(line + cell for line, cell in zip(lines, cells, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=list(bench.LONG))
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path, required=True, help="where to write the rows")
    args = parser.parse_args()
    bench.log_to_nowhere()
    rows, idle = measure(bench.LONG[args.case].batch, rounds=args.rounds, steps=args.steps)
    interleaved.write(args.json, {args.case: rows})
    print(table(rows, idle if "NPROC" in os.environ else None))


if __name__ == "__main__":
    main()
