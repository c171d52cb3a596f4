"""SPMD processes: `train.Loop` with the default hooks against a hand-written loop, in turns in the same processes.

Run it with `hookline launch --spmd --processes 2 benchmarks/spmd.py`. Both loops make the same step, an MLP that
takes 5 ms or more, on batches that are split over the processes. Each round times one after the other; what is shown
is the median of the ratios, with its error. Then it measures the constants of the cost model in docs/spmd.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl
from hookline.coordination import process_group
from hookline.coordination.agreement import Agreement
from hookline.session.running import launch_log

WIDTH, BATCH = 384, 128


def init() -> Any:
    """Returns the parameters."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32) for _ in range(4)]


TRANSFORMATION = optax.adam(1e-4)


def train_step(state: Any, batch: Any) -> Any:
    """Returns the state after a step, and its metrics."""

    def loss_fn(params: Any) -> Any:
        hidden = batch[0]
        for weights in params:
            hidden = jnp.tanh(hidden @ weights)
        return jnp.mean((hidden - batch[1]) ** 2)

    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params)
    changes, opt_state = TRANSFORMATION.update(grads, opt_state, params)
    return (optax.apply_updates(params, changes), opt_state), {"loss": loss}


def batches() -> Any:
    """Returns the source of both loops."""
    rng = np.random.default_rng(1)
    examples = rng.normal(size=(2, 16 * BATCH, WIDTH)).astype(np.float32)
    return hl.data.from_arrays(tuple(examples), BATCH, shuffle_seed=0, epochs=None)


class ByHand:
    """The loop that a person writes: local rows, global arrays, one jitted step."""

    def __init__(self) -> None:
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        whole, split = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("data"))
        params = init()
        place = lambda leaf: jax.make_array_from_callback(  # noqa: E731
            np.shape(leaf), whole, lambda index: np.asarray(leaf)[index]
        )
        self._state = jax.tree.map(place, (params, TRANSFORMATION.init(params)))
        self._split, self._source = split, iter(batches())
        self._step = jax.jit(train_step, donate_argnums=0, out_shardings=(whole, whole))

    def run(self, steps: int) -> None:
        """Trains, and waits for the last step."""
        metrics: Any = None
        for number in range(steps):
            batch = next(self._source)
            own = jax.tree.map(lambda leaf: leaf[_own_rows(len(leaf))], batch)
            placed = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(self._split, leaf), own)
            self._state, metrics = self._step(self._state, placed)
            if number % 100 == 99:
                float(metrics["loss"])
        jax.block_until_ready((self._state, metrics))


def _own_rows(count: int) -> slice:
    share = count // jax.process_count()
    return slice(jax.process_index() * share, (jax.process_index() + 1) * share)


def constants() -> dict[str, float]:
    """Returns the cost of each part of the synchronization, in microseconds."""
    processes, launched = process_group.current(), launch_log.current()
    assert processes is not None, "There are several."
    assert launched is not None, "There are several."
    agreement = Agreement(processes.store, processes.index, processes.count, name="measured")

    def once(function: Callable[[], Any], times: int) -> float:
        processes.barrier("a measurement")
        begun = time.perf_counter()
        for _ in range(times):
            function()
        return 1e6 * (time.perf_counter() - begun) / times

    def decide() -> float:
        processes.barrier("a measurement")
        begun = time.perf_counter()
        if processes.is_chief:
            agreement.propose("measured")
        while agreement.before_run() is None:
            time.sleep(5e-4)  # A step, in which the listener's thread can work.
        return 1e6 * (time.perf_counter() - begun)

    found = {"a run without a proposal": once(agreement.before_run, 100_000)}
    while agreement.started < 300_000:  # Runs are numbered: all must have made as many.
        agreement.before_run()
    known = {"kind": 1}
    found["a launch of a known program"] = once(lambda: launched.record(known, "a program", "kind", str), 100_000)
    found["a gathering of all, as before a new program"] = once(lambda: processes.all_gather("measured", 1), 200)
    name = "an agreement, from the proposal to the run after which all act"
    found[name] = statistics.median([decide() for _ in range(50)])
    agreement.close()
    return found


def main() -> None:
    """Measures, and shows the figures in process 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    params = init()
    loop = hl.train.Loop(train_step, (params, TRANSFORMATION.init(params)), batches())
    by_hand, ratios, times = ByHand(), [], []
    with loop.session(progress=False) as session:

        def ours(steps: int) -> None:
            for _ in range(steps):
                assert not session.should_stop()
                session.run(loop.train_op)
            raw = session.raw_session()
            jax.block_until_ready(raw.backend.values_with_positions([loop.state], [])[0])

        for run in (by_hand.run, ours):
            run(10)
        for number in range(arguments.rounds):
            took = {}
            for run in (by_hand.run, ours) if number % 2 else (ours, by_hand.run):
                begun = time.perf_counter()
                run(arguments.steps)
                took[run] = time.perf_counter() - begun
            ratios.append(took[ours] / took[by_hand.run])
            times.append(took[by_hand.run] / arguments.steps)
    if jax.process_index() == 0:
        low, high = np.percentile(ratios, [25, 75])
        error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
        print(f"{jax.process_count()} processes; by hand a step takes {1e3 * statistics.median(times):.2f} ms.")
        print(f"hookline takes {statistics.median(ratios):.3f} +- {error:.3f} of it ({len(ratios)} rounds,", end=" ")
        print(f"quartiles {low:.3f} and {high:.3f}).")
    for name, micros in constants().items():
        if jax.process_index() == 0:
            print(f"{name}: {micros:,.2f} us")


if __name__ == "__main__":
    main()
