"""What a firing costs: two log lines and two scalars, by hooks and by hand; and what hooks with a run callback cost.

In turns. `make bench` writes the results into `docs/bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import by_hand
import interleaved
import tiny_step
from bench import log_to_nowhere

import hookline as hl
from hookline import train

EVERY, NEVER = 10, 10**9
CALLED = (0, 1, 2, 10)


class Called(train.SessionRunHook):
    """A hook that is called on every run."""

    def after_run(self, run_context, run_values):
        pass


def monitored(every: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The step under hooks that log the rate and the loss, and write a scalar each."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    with hl.Graph().as_default():
        loss, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        scaffold = train.Scaffold(summary_op=hl.summary.merge_all())
        hooks = [
            train.StepCounterHook(every, output_dir=folder),
            train.SummarySaverHook(save_steps=every, output_dir=folder, scaffold=scaffold),
            train.LoggingTensorHook({"loss": loss}, every_n_iter=every),
        ]
        session = stack.enter_context(train.MonitoredSession(hooks=hooks))
    return interleaved.stepwise(lambda: session.run(train_op))


def hand(every: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The same by hand."""
    writer = hl.summary.FileWriter(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.callback(writer.close)
    return interleaved.stepwise(by_hand.with_jobs(*tiny_step.batch(), writer, checks_nan=False, every=every))


def called(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The step under so many hooks that are called on every run."""
    with hl.Graph().as_default():
        _, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        session = stack.enter_context(train.MonitoredSession(hooks=[Called() for _ in range(count)]))
    return interleaved.stepwise(lambda: session.run(train_op))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--results", type=Path, help="where to write firing.json and firing.md")
    args = parser.parse_args()
    log_to_nowhere()
    with contextlib.ExitStack() as stack:
        runs = {
            f"{name}, {every}": make(every, stack)
            for name, make in (("hooks", monitored), ("hand", hand))
            for every in (EVERY, NEVER)
        } | {str(count): called(count, stack) for count in CALLED}
        references = f"hooks, {NEVER}", f"hand, {NEVER}", *map(str, CALLED)
        rows = interleaved.measure(runs, rounds=args.rounds, steps=args.steps, references=references)
    firing = {name: rows[f"{name}, {EVERY}"].added[f"{name}, {NEVER}"] * EVERY for name in ("hooks", "hand")}
    errors = {name: rows[f"{name}, {EVERY}"].error_added[f"{name}, {NEVER}"] * EVERY for name in firing}
    first = rows["1"].added["0"]
    further = rows[str(CALLED[-1])].added["1"] / (CALLED[-1] - 1)
    text = (
        f"- A firing of two log lines and two scalars takes {firing['hooks']:.0f} ± {errors['hooks']:.0f} µs by hooks "
        f"and {firing['hand']:.0f} ± {errors['hand']:.0f} µs by hand: {firing['hooks'] - firing['hand']:.0f} µs more.\n"
        f"- The first hook with a run callback adds {first:.1f} ± {rows['1'].error_added['0']:.1f} µs to a run, each "
        f"further one {further:.2f} µs.\n"
    )
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        interleaved.write(args.results / "firing.json", {"rows": rows, "a firing": firing})
        (args.results / "firing.md").write_text(text)


if __name__ == "__main__":
    main()
