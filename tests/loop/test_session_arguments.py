"""Arguments that a loop cannot run are refused at its construction, with name, line and remedy."""

from __future__ import annotations

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.training.train_state import TrainState

import hookline as hl

from .steps import NnxNet, batches, nnx_step

STATE = {"w": jnp.zeros(3), "n": jnp.zeros((), int)}


def assert_refused(error, match, step, state=STATE, data=None):
    with pytest.raises(error, match=match) as caught:
        hl.train.Loop(step, state, batches() if data is None else data)
    return caught.value


# Reading values ----------------------------------------------------------------------------------------------------


def floats(state, batch):
    return state, {"loss": float(state["w"].sum())}


def decides(state, batch):
    if state["w"].sum() > 1:
        return state, {}
    return state, {"loss": 0.0}


def converts(state, batch):
    return state, {"loss": np.asarray(state["w"]).sum()}


def indexes(state, batch):
    return state, {"loss": [1.0, 2.0][state["n"]]}


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (floats, r'float\(state\["w"\].sum\(\)\)'),
        (decides, r'if state\["w"\].sum\(\) > 1:'),
        (converts, r'np.asarray\(state\["w"\]\)'),
        (indexes, r'\[1.0, 2.0\]\[state\["n"\]\]'),
    ],
)
@pytest.mark.parametrize("jit", [lambda step: step, jax.jit])
def test_step_that_reads_values_is_refused_with_the_line(step, line, jit):
    error = assert_refused(
        TypeError, rf"Loop: {step.__name__} reads a value at .*test_session_arguments.py:\d+ \(`.*{line}", jit(step)
    )
    assert "jnp.where or jax.lax.cond" in str(error)
    assert error.__cause__ is not None


# Its arguments -----------------------------------------------------------------------------------------------------


def test_parameters_without_a_value_are_refused():
    def three(state, batch, targets, mask):
        return state, {}

    def by_name(state, batch, *, rate):
        return state, {}

    assert_refused(
        TypeError,
        "requires state, batch, targets, mask. A batch is one .* here it is .float32.32,4., float32.32.",
        three,
    )
    assert_refused(TypeError, "it requires nothing", lambda: None)
    assert_refused(
        TypeError, r"required keyword-only parameters, rate.*functools.partial\(by_name, rate=...\)", by_name
    )
    assert_refused(TypeError, "requires a function, got 3", 3)
    assert hl.train.Loop(functools.partial(by_name, rate=1.0), STATE, batches()).metrics == {}


def test_error_in_a_step_shows_its_arguments():
    def step(state, images, labels):
        return state, {"loss": jnp.mean(images[0] - labels)}

    with pytest.raises(Exception) as caught:  # noqa: PT011
        hl.train.Loop(step, STATE, [np.ones(2), np.ones(2)])
    told = "step(state=<the state: a dict of n, w>, images=<the batch: float32[2]>, labels=<a random key>)"
    assert f"hookline: Loop called {told}" in caught.value.__notes__

    def spread(model, opt_state, step, x, y):
        return model.no_such_thing, opt_state

    state = "model=<part 0 of the state: a dict of n, w>, opt_state=<part 1 of the state: a dict of n, w>"
    batch = "x=<part 0 of the batch: float32[32, 4]>, y=<part 1 of the batch: float32[32]>"
    with pytest.raises(AttributeError) as caught:
        hl.train.Loop(spread, (STATE, STATE), batches())
    assert f"hookline: Loop called spread({state}, step=<the global step>, {batch})" in caught.value.__notes__


def test_forgotten_optimizer_state_is_seen_in_the_call():
    def step(params, opt_state, batch, key):
        x, y = batch
        return params, opt_state, jnp.mean(x - y)

    with pytest.raises(ValueError, match="too many values to unpack") as caught:
        hl.train.Loop(step, STATE, batches())
    assert any("opt_state=<part 0 of the batch: " in note for note in caught.value.__notes__)


def test_step_without_a_batch_is_seen_to_get_none():
    def step(state, unused):
        return state["v"], unused

    with pytest.raises(KeyError) as caught:
        hl.train.Loop(step, STATE, None)
    called = "step(state=<the state: a dict of n, w>, unused=<None, because there are no batches>)"
    assert f"hookline: Loop called {called}" in caught.value.__notes__


# Its result --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (
            lambda state: {"loss": 0.5},
            "it returned no new state, but a dict of loss; it was given a dict of n, w. Write `return state, {'loss'",
        ),
        (lambda state: 0.5, "it returned no new state, but a float; it was given a dict of n, w. Write"),
        (lambda state: (0.5, {"accuracy": 1.0}), "it returned no new state, but a float, a dict of accuracy; it was"),
        (lambda state: ({"w": state["w"]}, {}), "n is gone"),
        (lambda state: ({**state, "m": state["w"]}, {}), "m is new"),
        (lambda state: ({**state, "w": state["w"][:2]}, {}), r"w was float32\[3\] and is float32\[2\]"),
        (lambda state: ({**state, "w": state["w"].astype("bfloat16")}, {}), r"w was float32\[3\] and is bfloat16\[3\]"),
        (lambda state: ({**state, "n": state["n"] + 0.5}, {}), r"n was int32\[\] and is float32\[\]"),
        (lambda state: ([state["n"], state["w"]], {}), "0 is new; 1 is new; n is gone; w is gone"),
    ],
)
def test_wrong_result_of_a_step_is_named(returned, match):
    def step(state, batch):
        return returned(state)

    assert_refused((TypeError, ValueError), f"Loop: step: .*{match}", step)


def test_nnx_objects_returned_by_a_step_are_refused():
    def step(model, optimizer, batch):
        return model, optimizer, nnx_step(model, optimizer, batch)

    model = NnxNet(nnx.Rngs(0))
    state = model, nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    assert_refused(TypeError, "changes them and returns only its metrics", step, state)


def test_nnx_objects_mixed_with_other_values_are_refused():
    assert_refused(TypeError, "NnxNet is among other things in dict", floats, {"model": NnxNet(nnx.Rngs(0)), "w": 1.0})


def test_changed_function_in_the_state_is_refused():
    def step(state, batch):
        return {"w": state["w"], "f": lambda: None}, {}

    assert_refused(ValueError, "'f' is no array, so it must not change", step, {"w": jnp.zeros(1), "f": print})


def test_a_state_without_arrays_is_refused():
    assert_refused(TypeError, "requires a state that holds arrays, got {}", floats, {})


def test_references_in_the_state_are_refused_with_advice():
    def step(state, batch):
        state["w"][...] += 1
        return {}

    state = {"n": jnp.zeros(()), "w": jax.new_ref(jnp.zeros(3))}
    assert_refused(TypeError, "at 'w' is a jax.Ref.*Give the arrays.*make references inside", step, state)


# Numbers of Python -------------------------------------------------------------------------------------------------


def test_number_of_changing_dtype_is_logged_once_and_not_recompiled(caplog):
    def step(state, batch):
        scale = jnp.asarray(state["scale"], "bfloat16") * 2
        return {"scale": scale, "n": state["n"] + 1, "rate": state["rate"]}, {}

    with caplog.at_level(logging.INFO, "hookline"):
        loop = hl.train.Loop(step, {"scale": 2.0, "n": 0, "rate": 0.1}, batches())
        final = loop.run(last_step=5, logging=hl.train.LoggingOptions(rate_steps=None), nan_check=None)
    told = [line for line in caplog.messages if "returns in another type" in line]
    assert len(told) == 1
    assert "scale (bfloat16)" in told[0]
    assert "n (" not in told[0]
    assert final["scale"].dtype == jnp.bfloat16
    assert final["n"] == 5
    assert final["rate"] == 0.1  # as it was given: the step returned it so
    assert sum("Compiling" in line and "writes" in line and "state" in line for line in caplog.messages) <= 2


def test_number_used_as_text_by_the_step_is_refused():
    assert_refused(ValueError, "the state at 'n' was given as the number 0, and returned as 'one'",
            lambda state, batch: ({"n": "one", "w": state["w"]}, {}), {"n": 0, "w": jnp.zeros(1)})  # fmt: skip


# Metrics in the state ----------------------------------------------------------------------------------------------


@struct.dataclass
class Collection:
    """As `clu.metrics.Collection` has it."""

    total: jax.Array

    def merge(self, other):
        return Collection(self.total + other.total)

    def compute(self):
        return {"loss": self.total}


def test_metrics_without_reset_are_parts_of_the_model_with_a_log_line(caplog):
    class WithMetrics(TrainState):
        metrics: Collection

    state = WithMetrics.create(
        apply_fn=None, params={"w": jnp.zeros(1)}, tx=optax.sgd(1.0), metrics=Collection(jnp.zeros(()))
    )
    with caplog.at_level("INFO", "hookline"):
        loop = hl.train.Loop(lambda state, batch: (state, {}), state, [np.ones(2)])
    assert loop.metrics == {}
    assert "the Collection at 'metrics' of the state counts as a part of the model, not as a metric" in caplog.text


# Batches -----------------------------------------------------------------------------------------------------------


def steps_on(state, batch):
    return {**state, "n": state["n"] + 1}, {}


def test_empty_source_is_an_error():
    assert_refused(ValueError, "requires at least one batch, and batches is empty", steps_on, data=[])
    used = iter([np.ones(2)])
    next(used)
    assert_refused(ValueError, "it is an iterator that was used up", steps_on, data=used)


def test_error_of_the_source_is_raised():
    def broken():
        raise OSError("no such file")
        yield

    assert_refused(OSError, "no such file", steps_on, data=broken)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([["a", "b"]], r"text at \[0\]: 'a'"),
        ([{"x": np.ones(2), "name": "first"}], r"text at \['name'\]: 'first'"),
        (hl.data.from_arrays((np.ones((4, 2)), np.array(list("abcd"))), 2), r"text at \[1\]: 'a'"),
        (lambda: iter([np.array([b"abc", b"d"])]), "text: b'abc'"),
        ([(np.ones(2), np.array([[1], [2, 3]], object))], r"an object at \[1\]: \[1\]"),
    ],
)
def test_text_in_a_batch_is_refused_with_its_position(data, told):
    match = rf"requires batches of arrays and numbers, and the first has {told}\. .*turn it into numbers"
    assert_refused(TypeError, f"Loop {match}", steps_on, data=data)
    if not callable(data):
        with pytest.raises(TypeError, match=f"Evaluate 'eval' {match}"):
            evaluated(lambda state, batch: {"loss": 0.0}, data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (np.ones((10, 3), "float32"), r"got float32\[10,3\]\. .*use hookline.data.from_arrays\(tree, batch_size\)"),
        (jnp.ones(4), r"got float32\[4\]\. .*use hookline.data.from_arrays\(tree, batch_size\)"),
        ({"x": np.ones((10, 3)), "y": np.ones(10)}, r"got {'x': float64\[10,3\], 'y': float64\[10\]}"),
        ("train.csv", "got 'train.csv'"),
        (
            (np.ones((10, 3)), np.ones(10)),
            r"a tuple of arrays, \(float64\[10,3\], float64\[10\]\)\. .*data.from_arrays\(\(X, y\), batch_size=32\)",
        ),
        ((jnp.ones(2), jnp.ones(2)), "if each array is a batch, give a list of them"),
    ],
)
def test_invalid_data_are_refused_with_advice(data, told):
    with pytest.raises(TypeError, match=f"^Loop requires .*{told}"):
        hl.train.Loop(steps_on, STATE, data)
    with pytest.raises(TypeError, match=f"^Evaluate 'eval' requires .*{told}"):
        evaluated(lambda state, batch: {"loss": 0.0}, data)


def test_lists_and_tuples_of_batches_are_batches():
    pair = np.ones((2, 3)), np.ones(2)
    for data in ([np.ones(2), np.ones(2)], (pair, pair), [pair, pair]):
        assert hl.train.Loop(steps_on, STATE, data).run()["n"] == 2


def test_iterator_that_cannot_restart_is_refused(tmp_path):
    def loop():
        return hl.train.Loop(steps_on, STATE, (np.full(2, n, "float32") for n in range(10)))

    first = loop()
    first.run(str(tmp_path), last_step=3)
    assert first.run(str(tmp_path), last_step=5)["n"] == 5, "in this process it goes on"
    with pytest.raises(hl.errors.FailedPreconditionError, match="an iterator, which cannot be set to the position"):
        loop().run(str(tmp_path), last_step=8)
    repeatable = hl.train.Loop(steps_on, STATE, lambda: (np.full(2, n, "float32") for n in range(10)))
    assert repeatable.run(str(tmp_path))["n"] == 10


def test_iterator_with_a_position_is_accepted(tmp_path):
    def run(last_step):
        source = iter(hl.data.from_arrays(np.arange(10.0), 1))
        evaluate = hl.train.Evaluate(steps_in, iter(hl.data.from_arrays(np.arange(4.0), 1)), every=1)
        state = hl.train.Loop(steps_on, STATE, source).run(str(tmp_path), last_step, hooks=[evaluate])
        return state["n"], evaluate.values

    def steps_in(state, batch):
        return {"mean": batch.mean()}

    assert [run(last_step) for last_step in (3, 8)] == [(3, {"mean": 1.5}), (8, {"mean": 1.5})]


# Other wrong arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"progress": hl.train.ProgressHook()}, "True or False as progress.*hooks=\\[ProgressHook"),
        ({"progress": None}, "True or False as progress, got None"),
        ({"log_steps": "100"}, "Loop requires a whole number as log_steps"),
        ({"checkpoint_dir": "runs"}, "unexpected keyword argument 'checkpoint_dir'"),
        ({"checkpoints": "runs"}, r"requires a CheckpointOptions \(or None\) as checkpoints, got 'runs'"),
        ({"logging": hl.train.CheckpointOptions()}, "requires a LoggingOptions .* as logging"),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments, message):
    loop = hl.train.Loop(steps_on, STATE, batches())
    with pytest.raises(TypeError, match=message):
        loop.run(last_step=1, **arguments)


def test_zero_log_steps_are_refused():
    with pytest.raises(ValueError, match="Loop requires log_steps >= 1, got 0"):
        hl.train.Loop(steps_on, STATE, batches()).run(last_step=1, log_steps=0)


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(TypeError, match="two metrics are called 'a/b'"):
        hl.train.Loop(lambda state, batch: (state, {"a": {"b": 1.0}, "a/b": 2.0}), STATE, batches())


def test_metric_may_have_any_name(caplog):
    loop = hl.train.Loop(lambda state, batch: (state, {"global step": 7.0, "step": 8.0}), STATE, batches())
    with caplog.at_level(logging.INFO, "hookline"):
        loop.run(last_step=1, nan_check=None)
    assert "step 1: global step = 7.000, step = 8.000" in caplog.messages


def evaluated(eval_step, data):
    evaluate = hl.train.Evaluate(eval_step, data, every=1)
    hl.train.Loop(steps_on, STATE, batches()).run(last_step=1, hooks=[evaluate])


def test_evaluation_with_a_train_steps_result_is_refused():
    with pytest.raises(TypeError, match="an evaluation returns its metrics only, but it returned the state"):
        evaluated(lambda state, batch: (state, {"loss": 0.0}), [np.ones(2)])


def test_evaluation_batches_of_several_structures_are_refused():
    with pytest.raises(ValueError, match=r"batches of one structure: the first is .*\*\), another .*\(\*, \*\)"):
        evaluated(lambda state, batch: {"loss": 0.0}, [np.ones(2), (np.ones(2), np.ones(2))])


def test_evaluation_of_tensors_feeds_its_batches():
    for arguments in ({"batch_sharding": jax.devices()[0]}, {"last_batch": "drop"}):
        with pytest.raises(ValueError, match="takes batch_sharding, last_batch and steps_per_run with a function"):
            hl.train.Evaluate(hl.constant(1.0), [{}], every=1, **arguments)
    with pytest.raises(ValueError, match="Evaluate 'eval' requires one of keep, drop, pad as last_batch, got 'cut'"):
        hl.train.Evaluate(lambda state, batch: {}, [np.ones(2)], every=1, last_batch="cut")


def test_number_too_large_for_the_device_is_refused():
    rows = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))
    evaluate = hl.train.Evaluate(
        lambda state, batch: {"loss": batch.mean()}, [np.array([2**40])], every=1, batch_sharding=rows
    )
    with pytest.raises(hl.errors.InvalidArgumentError, match="holds 1099511627776"):
        hl.train.Loop(steps_on, STATE, batches()).run(last_step=1, hooks=[evaluate])


def test_two_evaluations_of_one_name_are_refused():
    hooks = [hl.train.Evaluate(lambda state, batch: 0.0, [np.ones(2)], every=1) for _ in range(2)]
    with pytest.raises(ValueError, match=r"hooks\[0\] and hooks\[1\] .*another name"):
        hl.train.Loop(steps_on, STATE, batches()).run(last_step=1, hooks=hooks)


def test_prefix_that_is_no_string_is_refused(tmp_path):
    with pytest.raises(TypeError, match="load requires a name as prefix"):
        hl.train.load(str(tmp_path), like=STATE, prefix=None)
