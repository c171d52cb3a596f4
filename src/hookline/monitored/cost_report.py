"""CostReport: the time and the fetches of a session so far, as data and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hookline.session.compilation import Compiled

ABOUT = {
    "step": "starting the step, and the session's own work",
    "hooks": "in callbacks of hooks",
    "saving": "in callbacks of hooks that save checkpoints",
    "input": "for batches that were not there",
    "waiting": "for the device",
    "compiling": "tracing and compiling",
    "starting": "until the session was there",
    "ending": "from its close on",
    "outside": "in your own code, between the runs",
}
"""The parts of the wall time, which add up to it."""


class HookCost(NamedTuple):
    """The costs of one hook.

    Args:
        name: The name of its class.
        firings: The number of its firings.
        rides: The number of calls of its `before_run` or its `after_run`, whichever is larger.
        secs: Seconds in its callbacks, without waits for the device.
        waits: The number of its calls that had to wait for values of its `fetches`.
        wait_secs: Seconds in these waits.
        values: The number of arrays and numbers that it got.
        fetched_bytes: Their size.
    """

    name: str
    firings: int
    rides: int
    secs: float
    waits: int
    wait_secs: float
    values: int
    fetched_bytes: int


class CostReport(NamedTuple):
    """The costs of a session so far; `str()` returns a table.

    Args:
        wall_secs: Seconds since the session was begun.
        secs: Seconds by part: "step", "hooks", "saving", "input", "waiting", "compiling", "starting", "ending" and
            "outside". Their sum is `wall_secs`. No part includes threads in the background.
        runs: The number of runs.
        steps: The number of global steps in these runs; None if it is not known.
        hooks: The costs of each hook, in calling order.
        compilations: The programs that were compiled, each with its cause.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     train_op = train.get_or_create_global_step().assign_add(1)
        ...     hooks = [train.StopAtStepHook(last_step=20)]
        ...     with train.MonitoredSession(hooks=hooks, report=True) as session:
        ...         while not session.should_stop():
        ...             _ = session.run(train_op)
        >>> report = session.report()
        >>> report.runs, report.steps, report.hooks[0].firings, len(report.compilations)
        (20, 20, 1, 2)
        >>> abs(sum(report.secs.values()) - report.wall_secs) < 1e-6
        True
    """

    wall_secs: float
    secs: dict[str, float]
    runs: int
    steps: int | None
    hooks: tuple[HookCost, ...]
    compilations: tuple[Compiled, ...]

    def __str__(self) -> str:
        steps = "" if self.steps is None else f", {self.steps} steps"
        lines = [f"{self.wall_secs:.3f} s: {self.runs} runs{steps}, {len(self.compilations)} compilations."]
        whole, per = self.wall_secs or 1.0, self.steps or self.runs
        rows = [("", "s", "%", "µs a step" if self.steps else "µs a run", "")]
        for part, secs in self.secs.items():
            rows.append((part, f"{secs:.3f}", f"{100 * secs / whole:.1f}", _micros(secs, per), ABOUT[part]))
        lines += _table(rows, left=(0, 4))
        if self.hooks:
            rows = [("hook", "firings", "rides", "s", "waits", "s", "values", "bytes")]
            rows += [
                (h.name, h.firings, h.rides, f"{h.secs:.3f}", h.waits, f"{h.wait_secs:.3f}", h.values, h.fetched_bytes)
                for h in self.hooks
            ]
            lines += _table(rows, left=(0,))
        if self.compilations:
            rows = [("compiled in s", "because", "")]
            rows += [(f"{made.secs:.3f}", made.cause, made.about) for made in self.compilations]
            lines += _table(rows, left=(1, 2))
        return "\n".join(lines)


def _micros(secs: float, count: int) -> str:
    return f"{secs / count * 1e6:.1f}" if count else ""


def _table(rows: Sequence[Sequence[object]], left: Sequence[int]) -> list[str]:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]
