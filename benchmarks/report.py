"""What a report costs a step: a monitored session with `report=True` against one without, in turns.

    python benchmarks/report.py [--rounds N] [--steps N]

Prints the difference in microseconds with its standard error, for a step on which no hook is called, and for one with a
hook that has `before_run` and `after_run`. The step is the shortest there is: it counts. Rounds are short and many, so
that most of them pass without anything else on the machine.
"""

from __future__ import annotations

import argparse

from interleaved import Run, measure, stepwise, table

import hookline as hl
from hookline import train


class OnEach(train.SessionRunHook):
    """Rides on each run."""

    def before_run(self, run_context):
        return None

    def after_run(self, run_context, run_values):
        pass


def contestant(*, report: bool, hooks: list) -> Run:
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1).op
        session = train.MonitoredSession(hooks=[train.StepCounterHook(10_000), *hooks], report=report)
    return stepwise(lambda: session.run(train_op))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    for about, hooks in (("no hook is called", list), ("a hook rides on each run", lambda: [OnEach()])):
        contestants = {
            "without": contestant(report=False, hooks=hooks()),
            "report": contestant(report=True, hooks=hooks()),
        }
        rows = measure(contestants, rounds=arguments.rounds, steps=arguments.steps, references=("without",))
        print(f"\n{about}\n\n{table(rows, errors=True)}")
        row = rows["report"]
        print(f"\nadded: {row.added['without']:.2f} ± {row.error_added['without']:.2f} µs a step")


if __name__ == "__main__":
    main()
