"""What sessions and hooks cost on a tiny step, against the bare step, the loop by hand, and TensorFlow's own.

In turns; longer steps in processes of their own. `make bench` writes the results into `docs/bench` and draws them;
`make bench-quick` only prints a short run. TensorFlow comes from an environment of its own (`make bench-peers`) and is
left out without it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import by_hand
import import_time
import in_processes
import interleaved
import tiny_step

import hookline as hl
from hookline import train

_HERE = Path(__file__).parent
BARE, BARE_LOSS = "bare jitted step", "bare jitted step, returns its loss"
HAND, HAND_NAN = "by hand", "by hand, NaN check"
WHOLE = "monitored, standard hooks, NaN check"
STANDARD = "stop, steps/s, summaries, log (each 100 steps), checkpoint (each 600 s)"


class Case(NamedTuple):
    """A batch whose step takes a millisecond or more.

    Args:
        batch: The arguments of `tiny_step.batch`.
        environment: Of the process that measures it.
        share: Of the rounds that are asked for, how many it makes.
    """

    batch: dict[str, int]
    environment: dict[str, str]
    share: float = 1.0


ONE_THREAD = {"NPROC": "1"}
"""XLA makes as many threads for the device as this says."""

LONG = {
    "sequences of 120, one thread for the device": Case({"length": 120}, ONE_THREAD),
    "16384 examples in the batch, all cores for the device": Case({"examples": 16384}, {}, share=0.5),
}

HOST, IDLE = "µs of the host's thread", "% device idle"

Hooks = Callable[[hl.Tensor, str], Sequence[Any]]
Columns = dict[str, dict[str, float]]
"""What else is known of the rows of a table, by the heads of its columns."""


def standard(loss: hl.Tensor, folder: str) -> list[Any]:
    return [
        train.StopAtStepHook(last_step=10**9),
        train.StepCounterHook(output_dir=folder),
        train.SummarySaverHook(
            save_steps=100, output_dir=folder, scaffold=train.Scaffold(summary_op=hl.summary.merge_all())
        ),
        train.CheckpointSaverHook(folder, save_secs=600),
        train.LoggingTensorHook({"loss": loss}, every_n_iter=100),
    ]


MONITORED: dict[str, Hooks] = {
    "monitored, no hooks": lambda loss, folder: [],
    "monitored, NaN check": lambda loss, folder: [train.NanTensorHook(loss)],
    "monitored, standard hooks": standard,
    WHOLE: lambda loss, folder: [*standard(loss, folder), train.NanTensorHook(loss)],
}


class Contestants:
    """What is measured; sessions are open as long as the stack is."""

    def __init__(self, stack: contextlib.ExitStack, **batch: int) -> None:
        self._stack = stack
        self._batch = tiny_step.batch(**batch)

    def folder(self) -> str:
        return self._stack.enter_context(tempfile.TemporaryDirectory())

    def session(self, *, fed: bool) -> interleaved.Run:
        with hl.Graph().as_default():
            train_op, feed = self._built(fed)[1:]
            session = self._stack.enter_context(hl.Session())
            session.run(hl.global_variables_initializer())
        if fed:
            return interleaved.stepwise(functools.partial(session.run, train_op, feed))
        return interleaved.stepwise(functools.partial(session.run, train_op))

    def monitored(self, hooks: Hooks, *, fed: bool = False) -> interleaved.Run:
        with hl.Graph().as_default():
            loss, train_op, feed = self._built(fed)
            made = hooks(loss, self.folder())
            session = self._stack.enter_context(train.MonitoredSession(hooks=made))
        if fed:
            return interleaved.stepwise(functools.partial(session.run, train_op, feed))
        return interleaved.stepwise(functools.partial(session.run, train_op))

    def by_hand(self, *, checks_nan: bool) -> interleaved.Run:
        writer = hl.summary.FileWriter(self.folder())
        self._stack.callback(writer.close)
        return interleaved.stepwise(by_hand.with_jobs(*self._batch, writer, checks_nan=checks_nan))

    def bare(self, *, returns_loss: bool = False) -> interleaved.Run:
        return interleaved.stepwise(by_hand.bare(*self._batch, returns_loss=returns_loss))

    def _built(self, fed: bool) -> tuple[hl.Tensor, hl.Operation, dict[hl.Tensor, Any]]:
        if not fed:
            return *tiny_step.graph(*map(hl.constant, self._batch)), {}
        images = hl.placeholder("float32", [None, 32], name="x")
        labels = hl.placeholder("float32", [None, 1], name="y")
        return *tiny_step.graph(images, labels), dict(zip((images, labels), self._batch, strict=True))


def measure_long(name: str, *, rounds: int, steps: int) -> tuple[dict[str, interleaved.Row], Columns]:
    """Times a longer step in a process of its own; see `long_step.measure`."""
    with tempfile.TemporaryDirectory() as folder:
        case, path = LONG[name], Path(folder) / "rows.json"
        command = [sys.executable, str(_HERE / "long_step.py"), name, "--json", str(path)]
        command += ["--rounds", str(max(round(rounds * case.share), 2)), "--steps", str(steps)]
        inherited = {key: value for key, value in os.environ.items() if key not in ONE_THREAD}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=inherited | case.environment)
        found = json.loads(path.read_text())
    return {row: interleaved.Row(**values) for row, values in found["rows"].items()}, found["columns"]


def long_table(rows: dict[str, interleaved.Row], columns: Columns) -> str:
    """Returns the rows of a longer step as a Markdown table."""
    lines = interleaved.table(rows, errors=True).splitlines()
    for head, values in columns.items():
        cells = [f" {head} |", "---:|", *(f" {values[name]:.{2 if head == IDLE else 0}f} |" for name in rows)]
        lines = [line + cell for line, cell in zip(lines, cells, strict=True)]
    return "\n".join(lines)


def log_to_nowhere() -> None:
    """Has log lines made, and go nowhere: on a terminal or a disk they would measure that."""
    # By force: importing Orbax has given the root logger a handler already.
    logging.basicConfig(stream=open(os.devnull, "w"), level=logging.INFO, force=True)  # noqa: SIM115


def draw(rows: dict[str, interleaved.Row], path: Path) -> None:
    """Draws what each contestant takes."""
    import matplotlib.pyplot as plt

    names = list(rows)[::-1]
    figure, axis = plt.subplots(figsize=(7, 0.36 * len(names) + 0.8))
    colours = [
        "tab:orange" if "TensorFlow" in n else "tab:gray" if "hand" in n or n.startswith(BARE) else "tab:blue"
        for n in names
    ]
    axis.barh(names, [rows[n].micros for n in names], xerr=[rows[n].spread for n in names], color=colours)
    axis.set_xlabel("µs a step")
    axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--long-rounds", type=int, default=100, help="with steps that take a millisecond or more")
    parser.add_argument("--long-steps", type=int, default=400, help="in a round of those")
    parser.add_argument("--import-rounds", type=int, default=41, help="of new processes")
    parser.add_argument("--results", type=Path, help="where to write bench.json and bench.md")
    args = parser.parse_args()
    log_to_nowhere()
    with contextlib.ExitStack() as stack:
        made = Contestants(stack)
        runs = {
            BARE: made.bare(),
            BARE_LOSS: made.bare(returns_loss=True),
            HAND: made.by_hand(checks_nan=False),
            HAND_NAN: made.by_hand(checks_nan=True),
            "Session.run": made.session(fed=False),
            "Session.run, two fed arrays": made.session(fed=True),
            **{name: made.monitored(hooks) for name, hooks in MONITORED.items()},
        }
        tensorflow = in_processes.tensorflow(stack)
        if tensorflow is not None:
            runs |= {f"TensorFlow {name}": run for name, run in tensorflow.items()}
        rows = interleaved.measure(runs, rounds=args.rounds, steps=args.steps, references=(BARE, BARE_LOSS, HAND_NAN))
    text, parts = interleaved.table(rows), {"rows": rows}
    hand, whole = (rows[name].added[BARE_LOSS] for name in (HAND_NAN, WHOLE))
    text += (
        f"\n\nTo the bare step that returns its loss the loop by hand adds {hand:.1f} µs, the session with all hooks "
        f"{whole:.1f} µs."
    )
    for name in LONG:
        parts[name], columns = measure_long(name, rounds=args.long_rounds, steps=args.long_steps)
        parts |= {f"{name}, {head}": values for head, values in columns.items()}
        text += f"\n\nThe same with {name}:\n\n{long_table(parts[name], columns)}"
    if args.import_rounds:
        parts["import"] = import_time.measure(rounds=args.import_rounds)
        text += f"\n\n{import_time.sentence(parts['import'])}"
    text += f"\n\nStandard hooks: {STANDARD}.\n"
    about = interleaved.machine()
    text += (
        f"{about['date']}, {about['machine']}, Python {about['python']}, JAX {about['jax']}, load {about['load']}.\n"
    )
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        interleaved.write(args.results / "bench.json", parts)
        (args.results / "bench.md").write_text(text)
        draw(rows, args.results / "bench.svg")


if __name__ == "__main__":
    main()
