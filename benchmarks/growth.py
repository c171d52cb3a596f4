"""How the cost of a run grows: with idle hooks, with the graph, with the leaves of the state, with what is fetched.

In each part all sizes are timed in turns. `make bench` writes `growth.json` and draws `growth.svg`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

import interleaved
import jax
import jax.numpy as jnp
import tiny_step

import hookline as hl
from hookline import train


class Idle(train.SessionRunHook):
    """A hook that is due once in a million steps."""

    def __init__(self):
        self.trigger = train.every(10**6)

    def on_trigger(self, firing):
        pass


def idle_hooks(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    with hl.Graph().as_default():
        _, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        session = stack.enter_context(train.MonitoredSession(hooks=[Idle() for _ in range(count)]))
    return interleaved.stepwise(lambda: session.run(train_op))


def nodes(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The step, and beside it so many nodes that no run needs."""
    with hl.Graph().as_default():
        _, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        last = hl.constant(1.0)
        for _ in range(count):
            last = last + 1.0
        session = stack.enter_context(hl.Session())
        session.run(hl.global_variables_initializer())
    return interleaved.stepwise(lambda: session.run(train_op))


def leaves(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """A variable of so many arrays, to each of which a run adds."""
    with hl.Graph().as_default():
        state = hl.Variable(lambda: [jnp.zeros(8) for _ in range(count)], name="state")
        add = state.assign(hl.op(lambda held: [leaf + 1 for leaf in held])(state))
        session = stack.enter_context(hl.Session())
        session.run(hl.global_variables_initializer())
    return interleaved.stepwise(lambda: session.run(add.op))


def variables(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The same, each array a variable of its own."""
    with hl.Graph().as_default():
        held = [hl.Variable(jnp.zeros(8), name=f"state_{number}") for number in range(count)]
        add = hl.group(*(variable.assign_add(1.0) for variable in held))
        session = stack.enter_context(hl.Session())
        session.run(hl.global_variables_initializer())
    return interleaved.stepwise(lambda: session.run(add))


def bare(count: int) -> interleaved.Run:
    """The same arrays in a jitted step that gives them away."""
    step = jax.jit(lambda held: [leaf + 1 for leaf in held], donate_argnums=0)
    held = [jnp.zeros(8) for _ in range(count)]

    def run() -> None:
        nonlocal held
        held = step(held)

    return interleaved.stepwise(run)


def fetches(count: int, stack: contextlib.ExitStack) -> interleaved.Run:
    """The step, and a list of so many scalars."""
    with hl.Graph().as_default():
        loss, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        wanted = [train_op, *(loss * float(i) for i in range(count))]
        session = stack.enter_context(hl.Session())
        session.run(hl.global_variables_initializer())
    return interleaved.stepwise(lambda: session.run(wanted))


Part = Callable[[int, contextlib.ExitStack], interleaved.Run]
PARTS: dict[str, tuple[Part, tuple[int, ...]]] = {
    "idle hooks": (idle_hooks, (0, 1, 10, 30, 100)),
    "nodes in the graph": (nodes, (10, 100, 1000, 10_000)),
    "leaves of the state": (leaves, (10, 100, 300, 1000)),
    "variables": (variables, (10, 100, 300)),
    "fetches in a list": (fetches, (1, 10, 30, 100)),
}


OF_THE_STATE = ("leaves of the state", "variables")


def draw(parts: dict[str, dict[int, interleaved.Row]], path: Path) -> None:
    """Draws a small picture for each part."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(parts), figsize=(3.2 * len(parts), 2.8))
    for axis, (name, rows) in zip(axes, parts.items(), strict=True):
        axis.errorbar(list(rows), [r.micros for r in rows.values()], [r.spread for r in rows.values()], marker="o")
        axis.set(xlabel=name, ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs a run")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--results", type=Path, help="where to write growth.json, growth.md and growth.svg")
    args = parser.parse_args()
    parts: dict[str, dict[int, interleaved.Row]] = {}
    text = ""
    for name, (make, sizes) in PARTS.items():
        with contextlib.ExitStack() as stack:
            runs = {str(size): make(size, stack) for size in sizes}
            rivals = {f"bare, {size}": bare(size) for size in sizes} if name in OF_THE_STATE else {}
            rows = interleaved.measure(runs | rivals, rounds=args.rounds, steps=args.steps, references=tuple(rivals))
        parts[name] = {int(size): rows[size] for size in runs}
        (low, first), *_, (high, last) = parts[name].items()
        slope = (last.micros - first.micros) / (high - low) * 1000
        cells = ", ".join(f"{size}: {row.micros:.1f} ± {row.spread:.1f}" for size, row in parts[name].items())
        text += f"- {name}: {cells} µs; {slope:.1f} ns for each one more."
        if rivals:
            pairs = ((size, rows[size], f"bare, {size}") for size in runs)
            ratios = (f"{size}: {row.ratios[by]:.3f} ± {row.errors[by]:.3f}" for size, row, by in pairs)
            text += f" To a bare step with as many arrays: {', '.join(ratios)}."
        text += "\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        interleaved.write(args.results / "growth.json", parts)
        (args.results / "growth.md").write_text(text)
        draw(parts, args.results / "growth.svg")


if __name__ == "__main__":
    main()
