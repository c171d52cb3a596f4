"""Arguments and results of steps: metrics that are arrays, tuples or none at all, and a state in parts."""

from __future__ import annotations

import functools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hookline as hl
from hookline.loop.step_call import StepCall, split_state  # For tables of signatures, without tracing a step for each.

STATE = {"w": jnp.zeros(3), "n": jnp.zeros((), int)}
X = np.arange(24, dtype="float32").reshape(8, 3)


def batches():
    return hl.data.from_arrays(X, 2)


class See(hl.train.SessionRunHook):
    """Keeps the metrics of each step."""

    def __init__(self, metrics):
        self.metrics, self.seen = metrics, []

    def before_run(self, run_context):
        return hl.train.SessionRunArgs(self.metrics)

    def after_run(self, run_context, run_values):
        self.seen.append(jax.device_get(run_values.results))


def run(loop, *args, hooks=(), summary_steps=100, **arguments):
    see = See(loop.metrics)
    written = hl.train.LoggingOptions(rate_steps=None, summary_steps=summary_steps)
    loop.run(*args, hooks=[*hooks, see], progress=False, logging=written, **arguments)
    return see.seen


# Arrays ------------------------------------------------------------------------------------------------------------


def measured(state, batch):
    return {"loss": batch.mean(), "by_class": batch.sum(axis=0), "confusion": jnp.outer(batch[0], batch[1]).astype(int)}


def test_array_is_a_metric_a_log_line_and_a_histogram(tmp_path, caplog):
    loop = hl.train.Loop(lambda state, batch: (state, measured(state, batch)), STATE, batches())
    with caplog.at_level(logging.INFO, "hookline"):
        seen = run(loop, str(tmp_path), last_step=2, log_steps=1, summary_steps=1)
    np.testing.assert_array_equal(seen[1]["by_class"], X[2:4].sum(axis=0))
    np.testing.assert_array_equal(seen[1]["confusion"], np.outer(X[2], X[3]))
    assert (
        "step 1: by_class = [3.0 5.0 7.0], confusion = [[ 0 0 0] [ 3 4 5] [ 6 8 10]], loss = 2.500" in caplog.messages
    )
    written = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()
    assert [event.value for event in written.Scalars("loss")] == [2.5, 8.5]
    assert [event.histogram_value.num for event in written.Histograms("by_class")] == [3, 3]
    assert "by_class" not in written.Tags()["scalars"]


def test_long_array_is_for_hooks_and_histograms_only(caplog):
    loop = hl.train.Loop(lambda state, batch: (state, {"loss": 0.5, "all": jnp.ones(17)}), STATE, batches())
    with caplog.at_level(logging.INFO, "hookline"):
        assert run(loop, last_step=1, log_steps=1)[0]["all"].shape == (17,)
    assert "step 1: loss = 0.5000" in caplog.messages


def test_array_is_averaged_in_an_evaluation_also_after_a_restart(tmp_path, caplog):
    def evaluate():
        return hl.train.Evaluate(measured, hl.data.from_arrays(X, 3), every=2, steps_per_run=2)

    def trained(last_step):
        hook = evaluate()
        loop = hl.train.Loop(lambda state, batch: ({**state, "n": state["n"] + 1}, {}), STATE, batches())
        loop.run(str(tmp_path), last_step, hooks=[hook], progress=False)
        return hook

    def at(value):
        return np.asarray(value, "float64")

    weights = at([3, 3, 2])
    parts = [X[:3], X[3:6], X[6:]]
    for hook in (trained(2), trained(2)):
        assert hook.values["loss"] == pytest.approx(X.mean())
        by_class = sum(w * at(part.sum(axis=0)) for w, part in zip(weights, parts, strict=True)) / 8
        np.testing.assert_allclose(hook.values["by_class"], by_class)
        assert list(hook.best) == ["loss"]


def test_keep_best_by_an_array_is_refused():
    def trained(*hooks):
        loop = hl.train.Loop(lambda state, batch: (state, {}), STATE, batches())
        loop.run(last_step=2, hooks=hooks, progress=False)

    with pytest.raises(ValueError, match="cannot keep the best checkpoint by 'by_class': it is an array"):
        trained(hl.train.Evaluate(measured, [X], every=1, keep_best="by_class", mode="max"))
    evaluate = hl.train.Evaluate(measured, [X[:2]], every=1)
    with pytest.raises(ValueError, match="requires a number, and the metric 'by_class' is an array"):
        trained(evaluate, hl.train.StopIfNoImprovement("by_class", 1, mode="max"))
    each = hl.train.Evaluate(lambda state, batch: {"each": batch}, hl.data.from_arrays(X, 3), every=1)
    with pytest.raises(ValueError, match=r"'each' has the shapes \[\(2, 3\), \(3, 3\)\] in different batches"):
        trained(each)


# Leaf by leaf ------------------------------------------------------------------------------------------------------


def test_leaves_that_are_no_numbers_are_left_out_and_logged_once(caplog):
    def step(state, batch):
        told = {"loss": 0.5, "note": "low", "none": None, "f": len, "z": 1j * state["n"], "key": jax.random.key(0)}
        return state, told | {"empty": jnp.zeros((0, 3))}

    with caplog.at_level(logging.INFO, "hookline"):
        loop = hl.train.Loop(step, STATE, batches())
        run(loop, last_step=2)
    assert list(loop.metrics) == ["loss"]
    (told,) = [line for line in caplog.messages if "left out" in line]
    assert told == (
        "Loop: step: some metrics are no numbers, and are left out: 'note' is 'low', which is text; give "
        "a number for it; 'none' is None; give a number for it; 'f' is of the class builtin_function_or_method; "
        "give numbers of it; 'z' is complex; take its absolute value; 'key' is of dtype key<fry>; "
        "jax.random.key_data gives its numbers; 'empty' is an array of the shape (0, 3), without elements."
    )


def test_evaluation_leaves_out_such_leaves(caplog):
    evaluate = hl.train.Evaluate(lambda state, batch: (batch.mean(), {"note": "low"}), [X], every=1)
    hl.train.Loop(lambda state, batch: (state, {}), STATE, batches()).run(last_step=1, hooks=[evaluate])
    assert evaluate.values == {"loss": 11.5}
    assert "Evaluate 'eval': <lambda>: some metrics are no numbers" in caplog.text


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (1.0, ["loss"]),
        ((1.0, {"accuracy": 2.0}), ["loss", "accuracy"]),
        ((1.0, {"loss": 2.0, "top": {"1": 3.0}}), ["loss", "aux/loss", "top/1"]),
        ((1.0, 2.0), ["loss", "aux"]),
        ((1.0, (2.0, 3.0)), ["loss", "aux/0", "aux/1"]),
        ((1.0, 2.0, 3.0), ["loss", "aux/0", "aux/1"]),
        ((1.0, ({"a": 2.0}, [3.0])), ["loss", "aux/0/a", "aux/1/0"]),
        ((1.0, {"a": 2.0}, {"a": 3.0}), ["loss", "a", "aux/1/a"]),
        (({"a": (1.0, 2)}, {"rate": 0.1}), ["a/0", "a/1", "rate"]),
        ([1.0], ["loss"]),
        ({}, []),
        ((), []),
        (None, []),
    ],
)
def test_metrics_in_tuples_have_readable_names(metrics, names):
    loop = hl.train.Loop(lambda state, batch: (state, metrics), STATE, batches())
    assert sorted(loop.metrics) == sorted(names)


# A state in parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "state", "parts"),
    [
        ("state batch", (1, 2), {"state": None}),
        ("state batch key", (1, 2), {"state": None}),
        ("state rng batch", (1, 2), {"state": None}),
        ("model opt_state batch", (1, 2), {"model": 0, "opt_state": 1}),
        ("model opt_state batch rng", (1, 2), {"model": 0, "opt_state": 1}),
        ("model opt_state x y", (1, 2), {"model": 0, "opt_state": 1}),
        ("params opt_state rng batch", (1, 2, 3), {"params": 0, "opt_state": 1, "rng": 2}),
        ("rng params batch", (1, 2), {"rng": 0, "params": 1}),
        ("model x y opt_state", {"model": 1, "opt_state": 2}, {"model": "model", "opt_state": "opt_state"}),
        ("rng model batch", {"model": 1, "rng": 2}, {"rng": "rng", "model": "model"}),
        ("params batch", {"params": 1}, {"params": None}),
        ("params batch", {"params": 1, "opt_state": 2}, {"params": None}),
        ("state batch", [1, 2], {"state": None}),
    ],
)
def test_state_is_split_by_parameters(names, state, parts):
    assert split_state(names.split(), state) == parts


def test_dict_with_only_some_names_among_the_parameters_is_refused():
    match = "this state has model, but no parameter is called optstate. There are: model, opt_state, batch"
    with pytest.raises(TypeError, match=match):
        split_state(["model", "opt_state", "batch"], {"model": 1, "optstate": 2})


@pytest.mark.parametrize(
    ("signature", "batch", "given"),
    [
        ("state, batch", (1, 2), [0, (1, 2)]),
        ("state, batch, key", (1, 2), [0, (1, 2), "key"]),
        ("state, dropout_rng, batch", (1, 2), [0, "key", (1, 2)]),
        ("state, x, y", (1, 2), [0, 1, 2]),
        ("state, x, y", [1, 2], [0, 1, 2]),
        ("state, x, y, key", (1, 2), [0, 1, 2, "key"]),
        ("state, y, x", {"x": 1, "y": 2}, [0, 2, 1]),
        ("state, y, x, rng", {"x": 1, "y": 2}, [0, 2, 1, "key"]),
        ("state, query, key", {"query": 1, "key": 2}, [0, 1, 2]),
        ("state, batch, noise", {"x": 1}, [0, {"x": 1}, "key"]),
        ("state, x, step", (1, 2), [0, 1, 2]),
        ("state, x, step", {"x": 1, "step": 2}, [0, 1, 2]),
        ("state, x, step", {"x": 1}, [0, {"x": 1}, "step"]),
        ("state, x, y, step", (1, 2), [0, 1, 2, "step"]),
        ("state, batch, mask=None", (1, 2), [0, (1, 2)]),
        ("*given", (1, 2), [0, (1, 2)]),
    ],
)
def test_batch_is_bound_to_parameters(signature, batch, given):
    called = eval(f"lambda {signature}: [{signature.replace(', mask=None', '')}]")
    call = StepCall("Loop", called, {"state": None})
    call.bind_batch(batch)
    assert call([0], batch, *["key"] * (call.key is not None), step="step") == given


def test_optional_key_is_given_unless_bound():
    def step(state, batch, config, dropout_rng=None, *, mask=None):
        return state, {"loss": jnp.zeros(()) if dropout_rng is None else jax.random.uniform(dropout_rng)}

    bound = functools.partial(step, config=3)
    losses = set()

    class Look(hl.train.SessionRunHook):
        def __init__(self, loop):
            self.fetches, self.trigger = loop.metrics["loss"], hl.train.every(1)

        def on_trigger(self, firing):
            losses.add(float(firing.values))

    for function, count in ((bound, 2), (jax.jit(functools.partial(bound, dropout_rng=None)), 1)):
        losses.clear()
        loop = hl.train.Loop(function, STATE, batches())
        loop.run(last_step=2, progress=False, hooks=[Look(loop)])
        assert len(losses) == count


@pytest.mark.parametrize("batch", [(np.ones(1), np.ones(1)), {"x": np.ones(1), "y": np.ones(1)}, np.ones(1)])
def test_more_parameters_than_values_are_refused(batch):
    with pytest.raises(TypeError, match="it requires state, x, y, mask. A batch is one argument; or one for each"):
        hl.train.Loop(lambda state, x, y, mask: state, np.float32(0), [batch])


MODEL, SLOTS, TAU = {"a": np.zeros(2, "float32")}, [np.zeros(3, "float32")], np.float32(0.5)


def more(part):
    return jax.tree.map(lambda leaf: leaf + 1, part)


def assert_result(step, state, metrics, **changed):
    """Runs one step; compares the names of its metrics and the state, whose other parts must be unchanged."""
    loop = hl.train.Loop(step, state, batches())
    assert list(loop.metrics) == metrics
    final = loop.run(last_step=1, progress=False, nan_check=None)
    given = state if isinstance(state, dict) else dict(enumerate(state))
    wanted = {name: changed.get(name, changed.get(f"at{name}", part)) for name, part in given.items()}
    found = final if isinstance(final, dict) else dict(enumerate(final))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize(
    ("returned", "metrics"),
    [
        (lambda model, opt_state, loss: (model, opt_state), []),
        (lambda model, opt_state, loss: (model, opt_state, loss), ["loss"]),
        (lambda model, opt_state, loss: (loss, model, opt_state), ["loss"]),
        (lambda model, opt_state, loss: ((model, opt_state), loss), ["loss"]),
        (lambda model, opt_state, loss: (loss, (model, opt_state)), ["loss"]),
        (lambda model, opt_state, loss: (model, opt_state, loss, {"x": 1}), ["loss", "x"]),
        (lambda model, opt_state, loss: (loss, model, opt_state, {"x": 1}), ["loss", "x"]),
        (lambda model, opt_state, loss: {"opt_state": opt_state, "model": model}, []),
        (lambda model, opt_state, loss: (loss, {"model": model, "opt_state": opt_state}), ["loss"]),
    ],
)
@pytest.mark.parametrize("state", [(MODEL, SLOTS), {"model": MODEL, "opt_state": SLOTS}])
def test_state_in_parts_is_found_in_the_result(returned, metrics, state):
    def step(model, opt_state, batch):
        return returned(more(model), more(opt_state), batch.mean())

    assert_result(step, state, metrics, model=more(MODEL), opt_state=more(SLOTS), at0=more(MODEL), at1=more(SLOTS))


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (
            lambda model, opt_state: (opt_state, model, 0.5),
            r"in another order than its parameters, .*: opt_state, model, \.\.\.. Write `return model, opt_state, {",
        ),
        (lambda model, opt_state: (model, 0.5, opt_state), r"not side by side: model, \.\.\., opt_state"),
        (
            lambda model, opt_state: (0.5, {}),
            "it returned no new state, but a float, a dict; it was given a dict of a, a list",
        ),
        (lambda model, opt_state: 0.5, "and returned a float. Write `return model, opt_state, {'loss': loss}`"),
        (lambda model, opt_state: (model, [*opt_state, 0], 0.5), "1/1 is new"),
        (
            lambda model, opt_state: (model, [opt_state[0].astype("bfloat16")], 0.5),
            r"1/0 was float32\[3\] and is bfloat16\[3\]",
        ),
    ],
)
def test_ambiguous_or_unusable_result_is_refused(returned, match):
    with pytest.raises(Exception, match=match):
        hl.train.Loop(lambda model, opt_state, batch: returned(model, opt_state), (MODEL, SLOTS), batches())


def test_state_that_is_a_pair_may_be_returned_as_two_values():
    for returned in (lambda m, s: (m, s, 0.5), lambda m, s: ((m, s), 0.5), lambda m, s: (m, s)):
        loop = hl.train.Loop(lambda state, batch, key, f=returned: f(*more(state)), (MODEL, SLOTS), batches())
        assert list(loop.metrics) in (["loss"], [])
        assert loop.run(last_step=1, progress=False, nan_check=None)[1][0][0] == 1


@pytest.mark.parametrize(
    ("returned", "metrics", "changed"),
    [
        (lambda model, tau, loss: (model, tau, {}), [], {"tau"}),
        (lambda model, tau, loss: (model, tau, loss), ["loss"], {"tau"}),
        (lambda model, tau, loss: {"model": model, "tau": tau}, [], {"tau"}),
        (lambda model, tau, loss: (model, {"loss": loss}), ["loss"], set()),
        (lambda model, tau, loss: ({"model": model}, loss), ["loss"], set()),
        (lambda model, tau, loss: model, [], set()),
    ],
)
@pytest.mark.parametrize("tau", [TAU, 0.5, jnp.array(0.5)])
def test_part_that_is_not_returned_is_unchanged_and_logged_once(returned, metrics, changed, tau, caplog):
    def step(model, tau, batch):
        return returned(more(model), tau * 2, batch.mean())

    assert_result(step, (MODEL, tau), metrics, at0=more(MODEL), at1=np.float32(1.0) if changed else tau)
    told = [line for line in caplog.messages if "does not return tau of the state, so it stays as given" in line]
    assert len(told) == (not changed)


@pytest.mark.parametrize(
    ("names", "state", "returned", "one", "other"),
    [
        ("model, tau", (MODEL, TAU), lambda m, t: (m, t), "model, tau", "model, metric`, where tau stays"),
        ("model, tau", (MODEL, 0.5), lambda m, t: (m, t), "model, tau", "model, metric`, where tau stays"),
        ("tau, model", (TAU, MODEL), lambda t, m: (t, m), "tau, model", "metric, model`, where tau stays"),
        (
            "model, opt_state, tau",
            (MODEL, SLOTS, TAU),
            lambda m, s, t: (m, t),
            "model, tau",
            "model, metric`, where tau",
        ),
        ("model, avg", (MODEL, MODEL), lambda m, a: (m, a), "model, avg", "model, metric`, where avg stays"),
        ("w, b", (TAU, TAU), lambda w, b: (w, b, w), "w, b, metric", "metric, w, b`"),
        ("w", TAU, lambda w: (w, w), "w, metric", "metric, w`"),
        ("w", TAU, lambda w: w, "w", "metric`, where w stays"),
        ("params", MODEL, lambda m: (m, m), "params, metric", "metric, params`"),
        (
            "model, target, n",
            (MODEL, MODEL, SLOTS),
            lambda m, t, n: (m, n, {}),
            "model, n, metric",
            "target, n, metric`",
        ),
    ],
)
def test_result_with_two_interpretations_is_refused_with_both(names, state, returned, one, other):
    step = eval(f"lambda {names}, batch: returned({names})", {"returned": returned})
    remedy = re.escape(f"`return {names}, {{'loss': loss}}`")
    for each in (state, dict(zip(names.split(", "), state, strict=True)) if isinstance(state, tuple) else state):
        with pytest.raises(TypeError, match=f"in two ways: `return {one}`, or `return {other}.*{remedy}"):
            hl.train.Loop(step, each, batches())


def test_while_loop_body_returns_its_whole_carry():
    def step(carry):
        w, opt_state = carry
        return w + 1, opt_state

    def with_loss(carry):
        params, _ = carry
        loss = params["a"].sum()
        return params, loss

    assert hl.train.Loop(step, (TAU, SLOTS), None).run(last_step=1, progress=False, nan_check=None)[0] == TAU + 1
    with pytest.raises(TypeError, match=r"`return carry\[0\], metric`, where carry\[1\] stays"):
        hl.train.Loop(with_loss, (MODEL, TAU), None)


def test_value_named_like_a_part_is_the_part():
    def same(model, tau, batch):
        model, tau = more(model), tau * 2
        return model, tau

    def new(model, tau, batch):
        new_tau = tau * 2
        return model, new_tau

    for step in (same, new):
        assert (
            hl.train.Loop(step, (MODEL, TAU), batches()).run(last_step=1, progress=False, nan_check=None)[1] == 2 * TAU
        )


@pytest.mark.parametrize("wrapped", [lambda step: step, jax.jit])
def test_parameter_in_the_middle_may_be_bound(wrapped):
    def step(model, rate, opt_state, batch, key=None):
        return more(model), more(opt_state), {"loss": rate * batch.mean(), "key": jax.random.uniform(key)}

    bound = wrapped(functools.partial(step, rate=0.5))
    for state in ({"model": MODEL, "opt_state": SLOTS}, (MODEL, SLOTS)):
        loop = hl.train.Loop(bound, state, batches())
        assert sorted(loop.metrics) == ["key", "loss"]
        loop.run(last_step=1, progress=False)


def test_gradients_are_not_stored_in_an_average_of_the_same_type():
    def step(params, average, batch):
        loss, grads = batch.mean(), more(params)
        return params, grads, loss

    def accumulated(params, grad_sum, batch):
        grads = more(grad_sum)
        return params, grads, batch.mean()

    with pytest.raises(TypeError, match="`return params, average, metric`, or `return params, metric, metric`"):
        hl.train.Loop(step, (MODEL, MODEL), batches())
    assert_result(accumulated, (MODEL, MODEL), ["loss"], at1=more(MODEL))


def test_value_called_a_loss_is_no_part_of_the_state():
    def before(w, batch):
        loss = batch.mean()
        return loss, w

    def after(w, b, batch):
        loss = batch.mean()
        return w + 1, b, loss

    def in_place(params, tau, batch):
        kl_loss = batch.mean()
        return params, kl_loss, 0.0

    def scaled(model, loss_scale, batch):
        new_loss_scale = loss_scale * 2
        return model, new_loss_scale, {"loss": batch.mean()}

    assert hl.train.Loop(scaled, (MODEL, TAU), batches()).run(last_step=1, progress=False)[1] == 2 * TAU
    assert hl.train.Loop(before, TAU, batches()).run(last_step=1, progress=False) == TAU
    assert hl.train.Loop(after, (TAU, TAU), batches()).run(last_step=1, progress=False) == (1.5, 0.5)
    with pytest.raises(TypeError, match="`return params, tau, metric`, or `return params, metric, metric`, where tau"):
        hl.train.Loop(in_place, (MODEL, TAU), batches())


def test_losses_have_the_names_of_their_variables_and_are_checked_for_nan():
    def step(state, batch):
        d_loss, g_loss = batch.mean(), jnp.log(20 - batch.max())
        return state, d_loss, g_loss, batch[0]

    def nested(state, batch):
        d_loss, g_loss = batch.mean(), batch.max()
        return state, (d_loss, g_loss)

    class Discriminator(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros(3))

    @nnx.jit
    def objects(model, batch):
        d_loss, g_loss = batch.mean(), batch.max()
        return d_loss, g_loss

    assert list(hl.train.Loop(nested, STATE, batches()).metrics) == ["d_loss", "g_loss"]
    assert list(hl.train.Loop(objects, Discriminator(), batches()).metrics) == ["d_loss", "g_loss"]
    loop = hl.train.Loop(jax.jit(step), STATE, batches())
    assert sorted(loop.metrics) == ["aux", "d_loss", "g_loss"]
    with pytest.raises(hl.train.NanLossDuringTrainingError, match="g_loss.* step 4"):
        loop.run(progress=False)
    loop.run(progress=False, nan_check="d_loss")


@pytest.mark.parametrize("steps_per_run", [1, 3])
@pytest.mark.parametrize("signature", ["state, batch, step", "state, step, batch", "state, batch, global_step, key"])
def test_parameter_called_step_gets_the_global_step(signature, steps_per_run, tmp_path):
    name = "global_step" if "global_step" in signature else "step"
    step = eval(f"lambda {signature}: ({{'sum': state['sum'] + 10 * {name} + 1}}, {{}})")
    for last_step in (2, 4):  # The second run resumes.
        loop = hl.train.Loop(step, {"sum": jnp.zeros((), int)}, batches(), steps_per_run=steps_per_run)
        final = loop.run(tmp_path, last_step, progress=False)
    assert final["sum"] == 10 * (0 + 1 + 2 + 3) + 4


def test_inferred_call_is_logged_once(caplog):
    def make_step(model, opt_state, x, y):
        return model + 0 * x.sum(), opt_state, y.mean()

    with caplog.at_level(logging.INFO, "hookline"):
        hl.train.Loop(make_step, (jnp.zeros(3), jnp.zeros(2)), hl.data.from_arrays((X, X[:, 0]), 2))
        hl.train.Loop(lambda state, batch: (state, {}), STATE, batches())
    assert [line for line in caplog.messages if "is given" in line] == [
        "Loop: make_step is given the parts of the state as model, opt_state, the parts of a batch as x, y."
    ]


def test_evaluation_gets_parts_by_name_and_a_batch_in_parts():
    def make_step(model, x, y, opt_state):
        return model + x.sum(axis=0), opt_state, y.mean()

    def evaluate(opt_state, model, x, y):
        return {"model": model.sum(), "opt_state": opt_state.sum(), "y": y.mean()}

    hook = hl.train.Evaluate(evaluate, [(X, X[:, 1])], every=4)
    state = {"model": jnp.zeros(3), "opt_state": jnp.ones(2)}
    final = hl.train.Loop(make_step, state, hl.data.from_arrays((X, X[:, 0]), 2)).run(hooks=[hook])
    assert hook.values == {"model": X.sum(), "opt_state": 2.0, "y": X[:, 1].mean()}
    assert list(final) == ["model", "opt_state"]


def test_evaluation_of_other_parts_is_refused():
    def step(model, opt_state, batch):
        return model, opt_state, 0.0

    hook = hl.train.Evaluate(lambda a, b, c, d: 0.0, [X], every=1)
    with pytest.raises(
        TypeError, match=r"parts of the state \(model, opt_state\) and a batch; it requires a, b, c, d. Give"
    ):
        hl.train.Loop(step, (jnp.zeros(3), jnp.zeros(2)), batches()).run(last_step=1, hooks=[hook])


def test_swapped_parts_are_refused_by_name():
    def swapped(params, ema, batch):
        new_ema, new_params = more(ema), more(params)
        return new_ema, new_params, {"loss": batch.mean()}

    def with_loss(params, ema, batch):
        return ema, params, batch.mean()

    for step in (swapped, with_loss):
        with pytest.raises(
            TypeError, match="returned (ema|params) in the place of (ema|params), by the name of the variable"
        ):
            hl.train.Loop(step, (MODEL, MODEL), batches())


def test_one_of_several_metrics_is_not_a_read_only_scalar():
    def two_errors(params, scale, batch):
        mse, mae = batch.mean(), batch.max()
        return params, mse, mae

    def dict_of_metrics(params, scale, batch):
        rate = scale * 0.5
        return params, rate, {"mse": batch.mean()}

    def between(w, momentum, b, batch):
        m = momentum * 0.5
        return w * 1, m, b, batch.mean()

    # A part between two others cannot be missing.
    state = (np.zeros(2, "float32"), TAU, np.zeros(3, "float32"))
    assert hl.train.Loop(between, state, batches()).run(last_step=1, progress=False)[1] == 0.5 * TAU
    with pytest.raises(TypeError, match="`return params, scale, metric`, or `return params, metric, metric`"):
        hl.train.Loop(two_errors, (MODEL, TAU), batches())
    assert hl.train.Loop(dict_of_metrics, (MODEL, TAU), batches()).run(last_step=1, progress=False)[1] == 0.5 * TAU


def test_wrong_result_of_a_step_with_many_parts_is_refused_quickly():
    def step(*arguments):
        return (*arguments[:8], 0.5)

    names = [f"p{number}" for number in range(16)]
    made = eval(f"lambda {', '.join(names)}, batch: step({', '.join(names)})", {"step": step})
    with pytest.raises(TypeError, match="in two ways"):
        hl.train.Loop(made, tuple(TAU for _ in names), batches())


def test_pair_beside_the_step_is_one_state_without_batches():
    step = lambda state, step: ((state[0] + step, state[1]), {})  # noqa: E731
    state = (TAU, np.zeros(2, "float32"))
    assert hl.train.Loop(step, state, None).run(last_step=3, progress=False, nan_check=None)[0] == 3.5


@pytest.mark.parametrize("names", ["state, batch, step", "state, batch, step, key", "state, batch, key, step"])
def test_pair_beside_the_step_is_one_state(names):
    step = eval(f"lambda {names}: ((state[0] + step, state[1]), {{}})")
    assert hl.train.Loop(step, (TAU, MODEL), batches()).run(last_step=3, progress=False, nan_check=None)[0] == 3.5


def test_negated_bool_has_no_changed_type(caplog):
    def step(state, batch):
        return {"flag": jnp.logical_not(state["flag"]), "w": state["w"] + 1}, {}

    assert hl.train.Loop(step, {"flag": True, "w": TAU}, batches()).run(last_step=1, progress=False)["flag"] == False  # noqa: E712
    assert "another type" not in caplog.text
