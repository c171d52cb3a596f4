"""Scalar summaries: hookline's FileWriter against tensorboard's EventFileWriter, in interleaved rounds of one process.

    python benchmarks/summary_writer.py [rounds]

Prints microseconds a scalar, encoding included, as medians over the rounds, and the median of the ratios within a
round. "total" is from the first call to the closed file, "caller" the time spent in the calls, "idle" one call every
2 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from hookline.summary import FileWriter, encode
from hookline.testing import read_events

SCALARS = 10_000
Figures = dict[str, float]


def ours(logdir: str) -> tuple[Callable[[int], None], Callable[[], None]]:
    writer = FileWriter(logdir)
    return lambda step: writer.add_summary(encode.scalar("loss", 0.5 + step), step), writer.close


def tensorboards(logdir: str) -> tuple[Callable[[int], None], Callable[[], None]]:
    writer = EventFileWriter(logdir)

    def add(step: int) -> None:
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=0.5 + step)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    return add, writer.close


def measure(make: Callable[[str], tuple[Callable[[int], None], Callable[[], None]]]) -> Figures:
    with tempfile.TemporaryDirectory() as logdir:
        add, close = make(logdir)
        start = time.perf_counter()
        for step in range(SCALARS):
            add(step)
        called = time.perf_counter()
        close()
        closed = time.perf_counter()
        assert len(read_events(logdir)) == SCALARS + 1
    with tempfile.TemporaryDirectory() as logdir:
        add, close = make(logdir)
        idle = []
        for step in range(200):
            time.sleep(0.002)
            before = time.perf_counter()
            add(step)
            idle.append(time.perf_counter() - before)
        close()
    per_scalar = 1e6 / SCALARS
    return {
        "total": (closed - start) * per_scalar,
        "caller": (called - start) * per_scalar,
        "idle": statistics.median(idle) * 1e6,
    }


def main(rounds: int) -> None:
    measured = [(measure(ours), measure(tensorboards)) for _ in range(rounds)]
    print(f"{'us a scalar':12}{'hookline':>10}{'tensorboard':>13}{'ratio':>8}")
    for what in ("total", "caller", "idle"):
        own = statistics.median(a[what] for a, _ in measured)
        other = statistics.median(b[what] for _, b in measured)
        ratio = statistics.median(a[what] / b[what] for a, b in measured)
        print(f"{what:12}{own:10.2f}{other:13.2f}{ratio:8.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
