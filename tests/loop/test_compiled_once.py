"""Equal programs are compiled once in a process, and nothing that has changed is served an old one."""

from __future__ import annotations

import gc
import logging
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl

ROWS = np.arange(24, dtype="float32").reshape(12, 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1) ** 2))(state["w"])
    return {"w": state["w"] - 0.001 * grads}, {"loss": loss, "largest": jnp.abs(grads).max()}


def loop_of(step=train_step, size=4):
    return hl.train.Loop(step, {"w": np.zeros(2, "float32")}, hl.data.from_arrays(ROWS, size, epochs=None))


@pytest.fixture
def compiled(caplog):
    """Returns the programs that were compiled since the last call, in words."""
    caplog.set_level(logging.INFO, "hookline")

    def found():
        lines = [line.partition("): ")[2] for line in caplog.messages if line.startswith("Compiling a program (")]
        caplog.clear()
        return lines

    return found


def test_step_is_compiled_once_for_equal_trainings_runs_and_recoveries(compiled, tmp_path):
    loops = [loop_of() for _ in range(3)]
    results = [loop.run(last_step=4, progress=False)["w"] for loop in loops]
    assert len(compiled()) == 2, "the initial values, and the step with the numbers that hooks ask for now and then"
    loops[0].run(last_step=6, progress=False)

    class Away(hl.train.SessionRunHook):
        left = 1

        def after_run(self, run_context, run_values):
            if run_context.session.global_step == 5 and self.left:
                self.left -= 1
                raise hl.errors.UnavailableError(None, None, "away")

    recovered = loop_of()
    again = hl.train.CheckpointOptions(save_steps=2, recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0))
    state = recovered.run(str(tmp_path), last_step=6, progress=False, hooks=[Away()], checkpoints=again)
    assert not compiled()
    assert all(np.array_equal(one, results[0]) for one in results)
    assert np.array_equal(state["w"], loops[0].result["w"])


RATE = 1.0


def test_changed_closure_values_are_compiled_again(compiled, monkeypatch):
    rates = types.SimpleNamespace(rate=1.0)

    def of(value):
        return lambda state, batch: ({"w": state["w"] + value}, {})

    def of_object(state, batch):
        return {"w": state["w"] + rates.rate}, {}

    def of_global(state, batch):
        return {"w": state["w"] + RATE}, {}

    def trained(step):
        return loop_of(step).run(last_step=3, progress=False, nan_check=None)["w"].tolist()

    for value in (1.0, 2.0, 1.0):
        rates.rate = value
        monkeypatch.setitem(globals(), "RATE", value)
        assert trained(of(value)) == trained(of_object) == trained(of_global) == [3 * value] * 2
    assert len(compiled()) == 3, "the initial values, and two steps: the three functions compute the same"


def test_steps_that_differ_only_for_some_batches_are_compiled_apart(compiled):
    def of(value):
        def step(state, batch):
            return {"w": state["w"] + (value if batch.shape[0] == 2 else 1.0)}, {}

        return step

    # Batches of 5, 5 and 2, twice.
    ends = [
        loop_of(of(value), size=5).run(last_step=6, progress=False, nan_check=None)["w"][0] for value in (10, 20, 10)
    ]
    assert ends == [24, 44, 24]
    assert len(compiled()) == 4, "the initial values, batches of 5, and two steps for batches of 2"


def test_callback_belongs_to_its_own_step():
    def trained(seen):
        def step(state, batch):
            jax.debug.callback(lambda w: seen.append(float(w)), state["w"][0])
            doubled = jax.pure_callback(lambda w: w * len(names), jax.ShapeDtypeStruct((2,), "float32"), state["w"] + 1)
            return {"w": doubled}, {}

        names = [None] * (1 + len(seen))
        loop_of(step).run(last_step=3, progress=False, nan_check=None)
        jax.effects_barrier()
        return seen

    assert trained([]) == [0, 1, 2]
    assert trained(["one"]) == ["one", 0, 2, 6]


def test_run_continues_after_jax_cleared_its_programs_or_changed_its_configuration():
    class Changes(hl.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.global_step == 2:
                jax.clear_caches()
            if run_context.session.global_step == 4:
                jax.config.update("jax_debug_nans", True)

    expected = loop_of().run(last_step=6, progress=False)["w"]
    try:
        found = loop_of().run(last_step=6, progress=False, hooks=[Changes()])["w"]
    finally:
        jax.config.update("jax_debug_nans", False)
    assert np.array_equal(found, expected)


def test_shared_program_keeps_no_training_alive():
    loop = loop_of(lambda state, batch: ({"w": state["w"] + batch.mean()}, {}))
    loop.run(last_step=2, progress=False, nan_check=None)
    graph = weakref.ref(loop.graph)
    del loop
    gc.collect()
    assert graph() is None


def test_step_with_its_own_mesh_is_not_shared(compiled):
    """As with four devices, on one: the text of a program does not name them, so it is not shared."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(w, batch):
        total = jax.shard_map(
            lambda rows: jax.lax.psum(rows.sum(), "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()
        )
        return w + total(batch), {}

    for _ in range(2):
        hl.train.Loop(step, np.float32(0), hl.data.from_arrays(ROWS, 4)).run(last_step=2, progress=False)
    assert len([about for about in compiled() if "writes state" in about and "batches" not in about]) >= 2


def test_large_constants_are_freed_with_their_training():
    def train():
        large = jnp.ones((500, 1234))
        step = lambda w, batch: (w + batch.mean() * large.mean(), {})  # noqa: E731
        hl.train.Loop(step, np.float32(0), hl.data.from_arrays(ROWS, 4)).run(last_step=2, progress=False)

    for _ in range(2):
        train()
    gc.collect()
    assert not [array for array in jax.live_arrays() if array.shape == (500, 1234)]


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_programs_that_use_other_values_in_the_same_way_are_apart(places):
    """Their texts are equal: `jit` leaves out unused values of a program."""
    for place in places:
        with hl.Graph().as_default():
            pair = hl.Variable(1, name="x"), hl.Variable(10, name="y")
            both = hl.update(pair, lambda old, place=place: (2 * old[place] + 1, 7))
            with hl.Session() as session:
                session.run(hl.global_variables_initializer())
                session.run(both.op)
                assert session.run(pair) == ((3, 7), (21, 7))[place]
