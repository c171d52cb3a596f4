"""The loop takes usual train steps, and gives the results of manual loops."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import signal
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import hookline as hl
from hookline.testing import RecordingHook, read_events

from .steps import WRITTEN, X, batches, by_hand, nnx_objects, plain, train


def close(one, other):
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def count_step(state, batch):
    """The smallest step: it counts, and returns its count."""
    return {"n": state["n"] + 1}, {"loss": (state["n"] + 1).astype(float)}


def counting(data=None, **metrics):
    return hl.train.Loop(count_step, {"n": jnp.zeros((), int)}, batches() if data is None else data)


def written(logdir, tag):
    return {
        event.step: value.simple_value
        for event in read_events(str(logdir))
        for value in event.summary.value
        if value.tag == tag
    }


# Usual steps -------------------------------------------------------------------------------------------------------


def quick(*kinds):
    """All kinds of steps, some of which are tried each time."""
    return [pytest.param(kind, marks=() if kind in kinds else pytest.mark.campaign) for kind in WRITTEN]


@pytest.mark.parametrize("kind", quick("nnx", "linen, jitted", "equinox, filter_jit", "plain, donating"))
def test_published_step_gives_the_result_of_a_manual_loop(kind, tmp_path):
    wanted, losses = by_hand(WRITTEN[kind](), 30)
    job = WRITTEN[kind]()

    loop = hl.train.Loop(job.step, job.state, batches())
    state = loop.run(str(tmp_path), last_step=30, logging=hl.train.LoggingOptions(summary_steps=10))

    assert close(job.weights(state), job.weights(wanted))
    shown = written(tmp_path, "loss")
    assert list(shown) == [1, 11, 21]
    assert np.allclose([*shown.values()], [losses[step - 1] for step in shown], rtol=1e-3)
    assert jax.tree.structure(state) == jax.tree.structure(job.state)


@pytest.mark.parametrize("kind", quick("nnx, jitted", "plain"))
def test_interrupted_training_ends_with_the_same_bits(kind, tmp_path):
    def run(name, *last_steps):
        for last_step in last_steps:
            job = WRITTEN[kind]()  # as in a new process
            state = hl.train.Loop(job.step, job.state, batches()).run(str(tmp_path / name), last_step=last_step)
        return jax.tree.leaves(job.weights(state))

    whole, parts = run("whole", 20), run("parts", 7, 20)
    assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))


def test_nnx_objects_hold_the_final_values_and_are_returned():
    job = nnx_objects(jit=True)
    model, optimizer = job.state
    before = jax.tree.map(jnp.copy, nnx.state(model))
    state = hl.train.Loop(job.step, job.state, batches()).run(last_step=5)
    assert state[0] is model
    assert state[1] is optimizer
    assert optimizer.step[...] == 5
    assert not close(nnx.state(model, nnx.Param), nnx.filter_state(before, nnx.Param))


def test_one_nnx_object_needs_no_tuple():
    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.zeros((), int))

    def step(counter, batch):
        counter.count[...] += 1
        return {"loss": 0.0}

    counter = Counter()
    assert hl.train.Loop(step, counter, batches()).run(last_step=3) is counter
    assert counter.count[...] == 3


def test_random_key_streams_may_be_among_the_objects(tmp_path):
    def step(model, rngs, batch):
        return jnp.mean(model(batch[0])) + jax.random.normal(rngs.noise())

    def drawn(*last_steps):
        for last_step in last_steps:
            model, rngs = nnx.Linear(4, 1, rngs=nnx.Rngs(0)), nnx.Rngs(noise=1)
            hl.train.Loop(step, (model, rngs), batches()).run(str(tmp_path / str(last_steps)), last_step)
        return jax.random.normal(rngs.noise())

    assert drawn(5) == drawn(2, 5) != drawn(4)


def test_given_state_is_not_donated():
    job = plain(lambda step: jax.jit(step, donate_argnums=0))
    hl.train.Loop(job.step, job.state, batches()).run(last_step=3)
    assert jax.tree.map(lambda leaf: np.isfinite(leaf).all(), job.state)


def test_key_differs_in_each_step_and_is_the_same_after_a_restart(tmp_path):
    def step(state, batch, key):
        draw = jax.random.uniform(key)
        return {"sum": state["sum"] + draw}, {"loss": draw}

    def loop(seed=None):
        return hl.train.Loop(step, {"sum": jnp.zeros(())}, batches(), seed=seed)

    whole = loop().run(str(tmp_path / "a"), 6, logging=hl.train.LoggingOptions(summary_steps=1))
    loop().run(str(tmp_path / "b"), 2)
    again = loop().run(str(tmp_path / "b"), 6)
    other = loop(seed=7).run(last_step=6)

    assert len(set(written(tmp_path / "a", "loss").values())) == 6
    assert whole["sum"] == again["sum"] != other["sum"]


def test_smaller_last_batch_is_trained():
    sizes = []

    def step(state, batch):
        sizes.append(len(batch))
        return {"seen": state["seen"] + len(batch)}, {"loss": 0.0}

    data = hl.data.from_arrays(X, 100)
    state = hl.train.Loop(step, {"seen": jnp.zeros((), int)}, data).run()
    assert state["seen"] == 256
    assert {100, 56} <= {size for size in sizes if isinstance(size, int)}


def test_step_may_take_a_mask_of_the_real_examples():
    def masked(state, batch):
        (x, y), mask = batch
        return {"seen": state["seen"] + mask.sum()}, {"loss": jnp.mean(x[:, 0] - y, where=mask)}

    loop = hl.train.Loop(masked, {"seen": jnp.zeros((), int)}, hl.data.from_arrays((X, X[:, 0]), 100), last_batch="pad")
    assert loop.run(progress=False)["seen"] == len(X) == 256
    dropped = hl.train.Loop(lambda state, x: ({"n": state["n"] + len(x)}, {}), {"n": 0}, [X, X[:8]], last_batch="drop")
    assert dropped.run(progress=False)["n"] == 256


def test_program_for_many_devices_runs_on_one():
    mesh = jax.make_mesh((1,), ("data",))
    state = {"n": jax.device_put(0, jax.NamedSharding(mesh, jax.P()))}
    for sharding in (None, jax.P("data")):
        loop = hl.train.Loop(
            lambda state, x: ({"n": state["n"] + len(x)}, {}), state, [X], batch_sharding=sharding, last_batch="drop"
        )
        assert loop.mesh == mesh
        assert loop.run(progress=False)["n"] == 256


def test_batches_may_be_a_part_of_an_iterators_batch():
    with hl.Graph().as_default():
        x, _ = hl.data.iterator(hl.data.from_arrays((X, X[:, 0]), 100))
    assert hl.train.Loop(lambda state, x: ({"n": state["n"] + len(x)}, {}), {"n": 0}, x).run(progress=False)["n"] == 256


def test_batches_may_be_a_tensor_with_options():
    def step(state, batch):
        x, mask = batch
        return {"seen": state["seen"] + mask.sum()}, {"loss": x.sum()}

    with hl.Graph().as_default() as graph:
        padded = hl.data.iterator(hl.data.from_arrays(X, 100), last_batch="pad")
        loop = hl.train.Loop(step, {"seen": jnp.zeros((), int)}, padded)
        assert loop.graph is graph
        assert loop.run()["seen"] == 256
        with pytest.raises(ValueError, match="a graph without another Loop"):
            hl.train.Loop(step, {"seen": jnp.zeros((), int)}, padded)


# Features of the loop ----------------------------------------------------------------------------------------------


Named = collections.namedtuple("Named", ["loss", "accuracy"])


@dataclasses.dataclass
class Told:
    loss: object
    accuracy: object


class Average:
    """As in `clu.metrics`: a metric with `compute`."""

    def __init__(self, total, count):
        self.total, self.count = total, count

    def compute(self):
        return self.total / self.count


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda loss: {"loss": loss, "top": {"1": loss * 2}}, {"loss", "top/1"}),
        (lambda loss: Named(loss, loss), {"loss", "accuracy"}),
        (lambda loss: Told(loss, {"a": loss}), {"loss", "accuracy/a"}),
        (lambda loss: loss, {"loss"}),
        (lambda loss: Average(loss * 4, 4), {"loss"}),
        (lambda loss: {"loss": Average(loss * 4, 4), "epoch": 3, "wild": True}, {"loss", "epoch", "wild"}),
        (lambda loss: nnx.MultiMetric(loss=nnx.metrics.Average("values")), {"loss"}),
        (lambda loss: {"loss": loss, "rate": nnx.Variable(jnp.asarray(0.1))}, {"loss", "rate"}),
        (lambda loss: {}, set()),
        (lambda loss: None, set()),
    ],
)
def test_metrics_of_every_kind_are_numbers_with_names(make, names, tmp_path, caplog):
    def step(state, batch):
        metrics = make(state["n"] + 1.0)
        if isinstance(metrics, nnx.MultiMetric):
            metrics.update(values=state["n"] + 1.0)
        return {"n": state["n"] + 1}, metrics

    loop = hl.train.Loop(step, {"n": jnp.zeros((), int)}, batches())
    with caplog.at_level(logging.INFO, "hookline"):
        loop.run(str(tmp_path), last_step=3, logging=hl.train.LoggingOptions(summary_steps=1), log_steps=1)

    assert loop.metrics.keys() == names
    for name in names:
        assert len(written(tmp_path, name)) == 3
    if "loss" in names:
        assert written(tmp_path, "loss") == {1: 1.0, 2: 2.0, 3: 3.0}
        assert any(line.startswith("step 3: ") and "loss = 3.000" in line for line in caplog.messages)


def test_each_feature_has_one_argument_that_disables_it(tmp_path, caplog, capsys):
    with caplog.at_level(logging.INFO, "hookline"):
        counting().run(
            str(tmp_path),
            last_step=5,
            progress=False,
            log_steps=None,
            nan_check=None,
            logging=hl.train.LoggingOptions(summary_steps=None, rate_steps=None, account=False),
            checkpoints=hl.train.CheckpointOptions(save_secs=None),
        )
    assert os.listdir(tmp_path) == []
    lines = [line for line in caplog.messages if "saves no checkpoints" not in line]
    assert len(lines) == len(caplog.messages) - 1
    assert not any("loss" in line or "sec" in line for line in lines)
    assert capsys.readouterr() == ("", "")


def test_without_a_directory_steps_per_second_are_logged(caplog):
    with caplog.at_level(logging.INFO, "hookline"):
        counting().run(last_step=30, logging=hl.train.LoggingOptions(rate_steps=10))
    assert any(line.startswith("global_step/sec") for line in caplog.messages)


def nan_at(step):
    def train_step(state, batch):
        n = state["n"] + 1
        return {"n": n}, {"loss": jnp.where(n == step, jnp.nan, 1.0)}

    return hl.train.Loop(train_step, {"n": jnp.zeros((), int)}, batches())


def test_nan_loss_ends_the_training_or_does_as_requested(tmp_path):
    with pytest.raises(hl.train.NanLossDuringTrainingError, match="at step 4"):
        nan_at(4).run(str(tmp_path / "raise"), last_step=10)
    assert nan_at(4).run(last_step=10, nan_check=None)["n"] == 10
    assert nan_at(4).run(last_step=5, on_nan="skip", checkpoints=hl.train.CheckpointOptions(recovery=None))["n"] == 3


def test_missing_loss_is_logged_and_a_wrong_name_refused(caplog):
    def step(state, batch):
        return state, {"error": jnp.zeros(())}

    loop = hl.train.Loop(step, {"n": jnp.zeros(())}, batches())
    loop.run(last_step=1)
    assert "nan_check='error'" in caplog.text
    with pytest.raises(ValueError, match="no metric 'accuracy' to check.*Available metrics: error"):
        loop.run(last_step=2, nan_check="accuracy")


def test_loop_recovers_from_a_lost_session(tmp_path):
    hook = RecordingHook(failures={"after_run": [None] * 4 + [hl.errors.UnavailableError(None, None, "away")]})
    recovery = hl.train.RecoveryPolicy(initial_backoff_secs=0)
    state = counting().run(
        str(tmp_path), 8, hooks=[hook], checkpoints=hl.train.CheckpointOptions(save_steps=2, recovery=recovery)
    )
    assert hook.callbacks.count("after_create_session") == 2
    assert state["n"] == 8


def test_preempted_loop_saves_and_holds_the_trained_state(tmp_path):
    class Signal(hl.train.SessionRunHook):
        trigger = hl.train.at_steps(3)

        def on_trigger(self, firing):
            signal.raise_signal(signal.SIGTERM)

    loop = counting()
    with pytest.raises(hl.train.Preempted):
        loop.run(str(tmp_path), last_step=100, hooks=[Signal()])
    assert loop.result["n"] == 3
    assert counting().run(str(tmp_path), last_step=4)["n"] == 4


def test_loop_at_its_last_step_returns_the_saved_state(tmp_path):
    counting().run(str(tmp_path), last_step=4)
    assert counting().run(str(tmp_path), last_step=4)["n"] == 4


def ended_early(caplog):
    return [line for line in caplog.messages if line.startswith("Loop: the data ended")]


@pytest.mark.parametrize("by_hand", [False, True])
def test_data_that_end_before_the_last_step_are_logged(by_hand, caplog):
    loop = counting([np.ones(2)] * 3)
    train(loop, by_hand, last_step=10)
    assert loop.result["n"] == 3
    assert ended_early(caplog) == [
        "Loop: the data ended at global step 3, before last_step=10. Give more data, more passes (epochs=), or "
        "data without an end: hookline.data.from_arrays(..., epochs=None)."
    ]


def test_stop_before_the_end_of_the_data_is_not_logged(caplog):
    counting([np.ones(2)] * 3).run(last_step=10, hooks=[hl.train.StopAtStepHook(last_step=2)])
    counting([np.ones(2)] * 3).run(last_step=3)
    counting([np.ones(2)] * 3).run()
    assert ended_early(caplog) == []


def test_loop_may_run_several_times(tmp_path):
    loop = counting()
    assert [int(loop.run(str(tmp_path), last_step=step)["n"]) for step in (2, 5, 9)] == [2, 5, 9]


# Both forms --------------------------------------------------------------------------------------------------------


class Seen(hl.train.SessionRunHook):
    def __init__(self, fetches):
        self.fetches, self.values = fetches, []

    def before_run(self, run_context):
        return hl.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.values.append(jax.tree.map(float, run_values.results))


@pytest.mark.parametrize("by_hand", [False, True])
def test_hooks_may_fetch_metrics_and_tensors_of_the_state(by_hand):
    loop = counting()
    with loop.graph.as_default():
        double = hl.op(lambda state: state["n"] * 2)(loop.state)
    seen = Seen([loop.metrics["loss"], loop.state["n"], double])
    train(loop, by_hand, last_step=2, hooks=[seen])
    assert seen.values == [[1.0, 0.0, 0.0], [2.0, 1.0, 2.0]]
    assert loop.result["n"] == 2


def test_users_loop_may_fetch_any_tensor():
    loop = counting()
    with loop.session(last_step=3) as session:
        losses = []
        while not session.should_stop():
            losses.append(float(session.run((loop.train_op, loop.metrics["loss"]))[1]))
    assert losses == [1.0, 2.0, 3.0]


# Two step counters -------------------------------------------------------------------------------------------------


def stepping(by, start=0):
    def step(state, batch):
        return {"step": state["step"] + by, "w": state["w"]}, {"loss": jnp.zeros(())}

    return hl.train.Loop(step, {"step": start, "w": jnp.zeros(())}, batches())


def test_global_step_starts_at_the_counter_of_the_state(caplog, tmp_path):
    assert stepping(by=1, start=500).run(str(tmp_path), last_step=510)["step"] == 510
    assert os.path.exists(tmp_path / "model.ckpt-510")
    assert "counts" not in caplog.text


def test_counter_that_differs_from_the_global_step_is_logged(caplog, tmp_path):
    assert stepping(by=2).run(str(tmp_path), last_step=3)["step"] == 6
    assert "the state counts 2 steps at 'step', and the global step is 1" in caplog.text


def test_counter_that_differs_after_a_skipped_update_is_logged(caplog):
    def step(state, batch):
        return {"step": state["step"] + 1}, {"loss": batch.mean()}

    data = np.zeros((150, 1), "float32")
    data[3] = np.nan
    loop = hl.train.Loop(step, {"step": jnp.zeros((), int)}, list(data))
    assert loop.run(last_step=150, on_nan="skip")["step"] == 149
    assert "the state counts 100 steps at 'step', and the global step is 101" in caplog.text


@pytest.mark.parametrize(
    "start",
    [
        0,
        np.float64(0.0),
        jnp.asarray(0.0),
        *[pytest.param(start, marks=pytest.mark.campaign) for start in (0.0, np.zeros(()), jnp.zeros(()))],
    ],
)
def test_no_step_after_the_first_is_compiled_for_any_initial_state(start):
    def traces(steps):
        found = []

        def step(state, batch):
            found.append(None)
            return {"n": state["n"] + 1}, {}

        hl.train.Loop(step, {"n": start}, batches()).run(last_step=steps)
        return len(found)

    assert traces(6) == traces(1)


@pytest.mark.parametrize("start", [0, pytest.param(jnp.array(0), marks=pytest.mark.campaign), jnp.zeros((), int)])
def test_weak_type_stays_weak_in_the_step_also_after_a_restart(start, tmp_path):
    def step(state, batch):  # A power of a count of weak type keeps the precision of `half`.
        w = (state["w"] * (1 - 0.5 ** (state["n"] + 1))).astype("float32")
        return {"w": w - batch.mean() * 0.1, "n": state["n"] + 1}, {
            "half": jnp.zeros((), "bfloat16") * 0.5 ** state["n"]
        }

    by_hand, hand = {"w": jnp.ones(3), "n": start}, jax.jit(step)
    for batch in np.ones((4, 1), "float32"):
        by_hand, metrics = hand(by_hand, batch)
    for last_step in (2, 4):
        loop = hl.train.Loop(step, {"w": jnp.ones(3), "n": start}, [*np.ones((4, 1), "float32")])
        final = loop.run(tmp_path, last_step, nan_check=None)
    assert loop.metrics["half"].dtype == metrics["half"].dtype
    assert np.array_equal(final["w"], by_hand["w"])
    assert final["n"].weak_type == by_hand["n"].weak_type


def test_weak_type_made_strong_by_the_step_is_strong_from_the_start():
    seen = []

    def step(state, batch):
        seen.append(state["w"].weak_type)
        return {"w": state["w"] - batch.mean()}, {}

    final = hl.train.Loop(step, {"w": jnp.array(1.0)}, [np.ones(2, "float32")] * 3).run()
    assert final["w"] == -2
    assert seen[0]
    assert not any(seen[1:])


def episodes(state, batch):
    """Counts as reinforcement learning does: 0 becomes a return, a length and a mean of returns."""

    def act(state, reward):
        done, total = reward < 0.1, state["return"] + reward
        after = {"return": total * (1 - done), "last": jnp.where(done, total, state["last"]), "n": state["n"] + 1}
        return after | {"scale": state["scale"] * jnp.ones((), "bfloat16")}, total

    state, totals = jax.lax.scan(act, state, batch)
    return state, {"loss": totals.mean(), "scaled": state["scale"] * totals.astype("bfloat16")}


@pytest.mark.parametrize("steps_per_run", [1, 4])
@pytest.mark.parametrize("begin", [lambda: 0, lambda: jnp.asarray(0)], ids=["number", "array"])
@pytest.mark.parametrize("form", ["arrays", "donating", "function", "restart"])
def test_weak_types_end_as_in_a_manual_loop(form, begin, steps_per_run, tmp_path, caplog):
    def init():
        return {"return": begin(), "last": begin(), "n": begin(), "scale": jnp.asarray(2.0)}

    rewards = np.random.default_rng(0).random((8, 3)).astype("float32")
    by_hand, hand = init(), jax.jit(episodes)
    for batch in rewards:
        by_hand, _ = hand(by_hand, batch)
    step = jax.jit(episodes, donate_argnums=0) if form == "donating" else episodes
    with caplog.at_level(logging.INFO, "hookline"):
        for last_step in (4, 8) if form == "restart" else (8,):
            state = init if form == "function" else init()
            loop = hl.train.Loop(step, state, [*rewards], steps_per_run=steps_per_run)
            caplog.clear()
            final = loop.run(
                tmp_path, last_step, progress=False, logging=hl.train.LoggingOptions(summary_steps=None), log_steps=None
            )
    for name, leaf in by_hand.items():
        assert (final[name].dtype, final[name].weak_type) == (leaf.dtype, leaf.weak_type)
        np.testing.assert_array_equal(final[name], leaf)
    np.testing.assert_array_equal(hl.train.load(tmp_path, like=init())["last"], by_hand["last"])
    assert sum("Compiling" in line and "writes" in line and "state" in line for line in caplog.messages) <= 2


def test_changed_types_are_logged_and_unstable_types_refused(caplog):
    def shifted(state, batch):
        return {"a": batch.mean(), "b": state["a"], "c": state["b"], "d": state["c"]}, {}

    def half(state, batch):
        return {"w": (state["w"] + batch).astype(int).sum()}, {}

    with pytest.raises(ValueError, match="shifted returns c of the state with another dtype or weak type in each of 3"):
        hl.train.Loop(shifted, {name: 0 for name in "abcd"}, [np.ones(2, "float32")])
    hl.train.Loop(shifted, {name: jnp.zeros(()) for name in "abcd"}, [np.ones(2, "float32")])
    assert "returns in another type" not in caplog.text
    for state in (0.5, jnp.asarray(0.5)):
        with pytest.raises(ValueError, match="'w' was given as 0.5 of dtype float32, and returned as int32, which can"):
            hl.train.Loop(half, {"w": state}, [np.ones(2, "float32")])
    hl.train.Loop(half, {"w": jnp.asarray(2.0)}, [np.ones(2, "float32")])
    assert "numbers that half returns in another type: w (int32)" in caplog.text
    with pytest.raises(ValueError, match=r"w was float32\[\] and is int32\[\]"):
        hl.train.Loop(half, {"w": jnp.zeros(())}, [np.ones(2, "float32")])


def test_weak_types_in_nnx_objects_are_resolved():
    class Running(nnx.Module):
        def __init__(self):
            self.mean = nnx.Variable(jnp.asarray(0))

    def step(running, batch):
        running.mean = nnx.Variable(0.5 * running.mean[...] + batch[0].mean())
        return {"loss": running.mean[...]}

    by_hand, hand = Running(), nnx.jit(step)
    for _, batch in zip(range(3), batches(), strict=False):
        hand(by_hand, batch)
    final = hl.train.Loop(step, Running(), batches()).run(last_step=3, progress=False)
    assert final.mean[...].dtype == jnp.float32
    assert final.mean[...] == pytest.approx(float(by_hand.mean[...]), rel=1e-6)


def test_loop_without_checkpoints_recovers_with_the_given_state():
    class Fail(hl.train.SessionRunHook):
        has_failed = False

        def after_run(self, run_context, run_values):
            if run_context.session.global_step == 2 and not self.has_failed:
                self.has_failed = True
                raise hl.errors.UnavailableError(None, None, "away")

    # Large enough that it is not compiled into a program.
    loop = hl.train.Loop(lambda state, batch: ({"w": state["w"] + 1}, {}), {"w": jnp.zeros((600, 600))}, batches)
    recovery = hl.train.RecoveryPolicy(initial_backoff_secs=0)
    for hooks in ([Fail()], []):
        state = loop.run(
            last_step=3, progress=False, hooks=hooks, checkpoints=hl.train.CheckpointOptions(recovery=recovery)
        )
        assert state["w"][0, 0] == 3


def test_hook_may_come_after_all_others():
    class Last(hl.train.SessionRunHook):
        comes_after = hl.train.SessionRunHook

    assert counting().run(last_step=3, progress=False, hooks=[Last()])["n"] == 3


def test_counter_is_found_in_a_result_whose_shapes_are_known_only_in_the_run():
    class State(NamedTuple):
        step: Any
        w: Any

    def train_step(state, batch):
        flat = batch.reshape(int(batch.shape[0]) * 2)  # Of a length that is open.
        return State(state.step + 1, state.w + flat.sum()), {"loss": flat.sum()}

    batches = lambda: iter([np.ones((size, 2), np.float32) for size in (4, 4, 2)])  # noqa: E731
    loop = hl.train.Loop(train_step, State(jnp.zeros((), int), jnp.zeros(())), batches)
    assert loop.run(progress=False) == (3, 20)
