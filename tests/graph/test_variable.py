"""Variables, updates, initialisers, gradients, optimizers and the global step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import hookline as hl
from hookline import errors


@pytest.fixture
def sess():
    with hl.Session() as session:
        yield session


def initialised(sess, value):
    v = hl.Variable(value, name="v")
    sess.run(v.initializer)
    return sess.run(v)


def test_initial_values_come_from_values_functions_and_tensors(sess):
    assert initialised(sess, 3) == 3
    assert initialised(sess, [1.0, 2.0]).tolist() == [1.0, 2.0]
    assert initialised(sess, {"a": np.ones(2), "b": (1, 2.0)})["b"] == (1, 2.0)
    assert initialised(sess, lambda: jax.random.normal(jax.random.key(0), (2,))).shape == (2,)
    assert initialised(sess, lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert initialised(sess, lambda: hl.constant(4.0) * 2) == 8.0
    assert initialised(sess, hl.constant(1.0) + 1.0) == 2.0


def test_function_allocates_nothing_while_the_graph_is_built():
    v = hl.Variable(lambda: jnp.zeros((1 << 20, 1 << 20)), name="huge")
    assert v.shape == (1 << 20, 1 << 20)


def test_initial_values_may_depend_on_those_of_other_variables(sess):
    a = hl.Variable(lambda: jax.random.normal(jax.random.key(0), (3,)), name="a")
    b = hl.Variable(a.initialized_value() * 2, name="b")
    c = hl.Variable(lambda: hl.op(jnp.sum)(b.initialized_value()), name="c")
    sess.run(hl.global_variables_initializer())
    values = sess.run([a, b, c])
    np.testing.assert_allclose(values[1], 2 * values[0])
    np.testing.assert_allclose(values[2], values[1].sum(), rtol=1e-6)


def test_report_names_uninitialised_variables(sess):
    a, b = hl.Variable(1.0, name="a"), hl.Variable(1.0, name="b", collections=[hl.GraphKeys.LOCAL_VARIABLES])
    report = hl.report_uninitialized_variables()
    only = hl.report_uninitialized_variables([b])
    assert sess.run([report, only]) == [["a", "b"], ["b"]]
    sess.run(hl.local_variables_initializer())
    assert sess.run([report, only]) == [["a"], []]
    sess.run(a.initializer)
    assert sess.run(report) == []


def test_updates_return_the_new_value_and_keep_structure_and_dtype(sess):
    v = hl.Variable({"a": np.ones(2, "float32"), "n": np.int32(1)}, name="v", trainable=False)
    added = v.assign_add({"a": np.ones(2), "n": 2})
    removed = v.assign_sub({"a": 0.5, "n": 1})
    sess.run(v.initializer)
    assert sess.run(added)["a"].tolist() == [2.0, 2.0]
    result = sess.run(removed)
    assert (result["a"].tolist(), int(result["n"])) == ([1.5, 1.5], 2)
    assert result["a"].dtype == jnp.float32


def test_an_update_of_two_variables_writes_both(sess):
    a, b = hl.Variable(1.0, name="a"), hl.Variable(2.0, name="b")
    swapped = hl.update({"a": a, "b": b}, lambda old: {"a": old["b"], "b": old["a"]}, name="swap")
    sess.run(hl.global_variables_initializer())
    assert sess.run(swapped["a"]) == 2.0
    assert sess.run([a, b]) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.assign(np.ones(3)), r"'v' has a fixed shape and dtype; the value .* has shape \(3,\)"),
        (lambda v: v.assign({"a": 1.0}), "'v' holds the structure"),
        (lambda v: hl.update(v, lambda old: (old, old)), "'v' holds the structure"),
        (lambda v: hl.update([v, v], lambda old: old), "contains a variable twice"),
        (lambda v: hl.update({"v": v}, lambda old: [old["v"]]), "another structure than its variables"),
        (lambda v: hl.Variable(1, name="n").assign(1.5), "'n' has .* dtype float32, which cannot be cast to int32"),
    ],
)
def test_misfit_update_is_refused_at_its_definition(change, message):
    v = hl.Variable(np.ones(2, "float32"), name="v")
    with pytest.raises(ValueError, match=message):
        change(v)


def test_misfit_known_only_in_the_run_is_refused_and_changes_nothing(sess):
    v = hl.Variable(np.ones(2, "float32"), name="v")
    x = hl.placeholder("float32", name="x")
    assign = v.assign(x)
    sess.run(v.initializer)
    with pytest.raises(ValueError, match=r"'v' has a fixed shape and dtype; .* has shape \(3,\)"):
        sess.run(assign, {x: np.ones(3)})
    assert sess.run(v).tolist() == [1.0, 1.0]


def test_update_requires_variables():
    with pytest.raises(TypeError, match="requires variables to write"):
        hl.update(hl.constant(1.0), lambda old: old)


def test_whole_module_is_refused_with_the_way_to_split_it():
    for value in (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0))):
        with pytest.raises(TypeError, match=r"nnx\.split\(model, nnx\.Param, \.\.\.\)"):
            hl.Variable(value, name="model")


def test_text_is_no_initial_value():
    with pytest.raises(TypeError, match="'v' requires a pytree of arrays and numbers"):
        hl.Variable("text", name="v")


# Gradients and optimizers -----------------------------------------------------------------------------------------


def test_gradients_flow_through_many_nodes_and_views(sess):
    a, b = hl.Variable(2.0, name="a"), hl.Variable({"w": jnp.array([1.0, 3.0])}, name="b")
    pair = hl.op(lambda x: {"square": x * x, "unused": x})(a)
    loss = pair["square"] * hl.op(jnp.sum)(b["w"]) + a
    ga, gb, gpair = hl.gradients(loss, [a, b, pair["square"]])
    sess.run(hl.global_variables_initializer())
    results = sess.run([ga, gb, gpair, loss])
    assert results[0] == 2 * 2.0 * 4.0 + 1
    assert results[1]["w"].tolist() == [4.0, 4.0]
    assert results[2:] == [4.0, 18.0]


def test_second_derivatives_are_computed(sess):
    x = hl.Variable(2.0, name="x")
    (first,) = hl.gradients(x**3, x)
    (second,) = hl.gradients(first, x)
    sess.run(x.initializer)
    assert sess.run([first, second]) == [12.0, 12.0]


def test_gradients_of_several_ys_add_up_and_missing_paths_are_none():
    x, other = hl.Variable(2.0, name="x"), hl.Variable(1.0, name="other")
    grads = hl.gradients([x * 3, x * x], [x, other])
    assert grads[1] is None
    with hl.Session() as sess:
        sess.run(x.initializer)
        assert sess.run(grads[0]) == 7.0


def test_value_without_a_gradient_is_named():
    n = hl.Variable({"k": 1}, name="n")
    with pytest.raises(TypeError, match=r"n:0\['k'\] has dtype int32.*trainable=False"):
        hl.gradients(hl.constant(1.0), n)
    x = hl.Variable(1.0, name="x")
    through = hl.host_op(lambda v: v, name="outside", spec=0.0)(x) * 1.0
    with pytest.raises(TypeError, match="'outside'.*cannot be differentiated"):
        hl.gradients(through, x)


TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "lion": optax.lion(0.1),
    "adafactor": optax.adafactor(0.1),
    "schedule": optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "global norm": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1)),
    "clip": optax.chain(optax.clip(0.5), optax.sgd(0.1)),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1)),
    "lookahead of none": optax.chain(optax.trace(0.9), optax.scale(-0.1)),
}


# With another initial state: of nothing, of arrays, of a count, of hyperparameters, of a key, of other shapes.
QUICK = ("sgd", "adam", "adafactor", "schedule", "injected", "noise")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.campaign) for name in TRANSFORMATIONS]
)
def test_optax_transformation_gives_optax_results(sess, name):
    transformation = TRANSFORMATIONS[name]
    params = [jnp.array([1.0, -2.0]), jnp.array([[0.5, 3.0]])]

    def loss_fn(params):
        return jnp.sum(params[0] ** 2) * jnp.sum(jnp.sin(params[1]))

    variables = [hl.Variable(value, name=f"v{i}") for i, value in enumerate(params)]
    loss = hl.op(loss_fn)(variables)
    train = hl.train.Optimizer(transformation).minimize(loss)
    sess.run(hl.global_variables_initializer())
    state = transformation.init(params)
    for _ in range(5):
        sess.run(train)
        updates, state = transformation.update(jax.grad(loss_fn)(params), state, params)
        params = optax.apply_updates(params, updates)
    for value, expected in zip(sess.run(variables), params, strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)


def slots_of(transformation):
    """The names of the variables in which an optimizer keeps its state, for two trained variables."""
    with hl.Graph().as_default():
        variables = [hl.Variable(1.0, name="a"), hl.Variable(2.0, name="b")]
        optimizer = hl.train.Optimizer(transformation)
        optimizer.minimize(variables[0] * variables[1])
        return [slot.op.name for slot in optimizer.slots]


APART, TOGETHER = ["optimizer/a", "optimizer/b"], ["optimizer/joint"]


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_optimizer_state_is_kept_for_each_variable_unless_they_are_coupled(name):
    assert slots_of(TRANSFORMATIONS[name]) == (TOGETHER if name in ("global norm", "noise") else APART)


def custom_rule(rule):
    ruled = jax.custom_jvp(rule)
    ruled.defjvp(lambda primals, tangents: (rule(*primals), rule(*tangents)))
    return ruled


@pytest.mark.parametrize("call", [jax.jit, jax.checkpoint, custom_rule, lambda rule: jax.jit(jax.checkpoint(rule))])
def test_per_gradient_function_of_a_stateless_transformation_is_not_coupled(call):
    alone = call(lambda grads: jax.tree.map(lambda grad: 2 * grad, grads))
    mixed = call(lambda grads: jax.tree.map(lambda grad: grad * optax.tree.norm(grads), grads))
    assert slots_of(optax.stateless(lambda grads, _: alone(grads))) == APART
    assert slots_of(optax.stateless(lambda grads, _: mixed(grads))) == TOGETHER


def test_only_trainable_variables_are_touched_and_the_step_counts(sess):
    a = hl.Variable(1.0, name="a")
    b = hl.Variable(1.0, name="b", trainable=False)
    step = hl.train.create_global_step()
    train = hl.train.Optimizer(optax.sgd(0.5)).minimize(a * b, global_step=step)
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    assert sess.run([a, b, step]) == [0.5, 1.0, 1]


def test_held_gradients_are_applied(sess):
    a, b = hl.Variable(1.0, name="a"), hl.Variable(1.0, name="b")
    train = hl.train.Optimizer(optax.sgd(1.0)).apply_gradients([(hl.constant(0.25), a), (None, b)])
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    assert sess.run([a, b]) == [0.75, 1.0]


def test_optimizer_errors_name_the_missing_argument():
    with pytest.raises(TypeError, match="requires an Optax transformation"):
        hl.train.Optimizer(0.1)
    optimizer = hl.train.Optimizer(optax.sgd(0.1))
    with pytest.raises(ValueError, match="there is no variable to train"):
        optimizer.minimize(hl.constant(1.0))
    hl.Variable(1.0, name="a")
    with pytest.raises(ValueError, match="the loss depends on none of the variables"):
        optimizer.minimize(hl.constant(1.0))


# Global step ------------------------------------------------------------------------------------------------------


def test_a_graph_has_one_global_step():
    assert hl.train.get_global_step() is None
    with hl.name_scope("inner"):
        step = hl.train.create_global_step()
    assert step.name == "global_step:0"
    assert not step.trainable
    assert hl.train.get_global_step() is hl.train.get_or_create_global_step() is step
    with pytest.raises(ValueError, match="already has a global step"):
        hl.train.create_global_step()


def test_variable_called_global_step_is_the_global_step(sess):
    step = hl.Variable(7, name="global_step", trainable=False)
    sess.run(step.initializer)
    assert hl.train.get_global_step() is step
    assert hl.train.global_step(sess, step) == sess.global_step == 7


@pytest.mark.parametrize("value", [1.0, [1, 2], {"a": 1}])
def test_global_step_that_is_no_integer_scalar_is_refused(value):
    hl.Variable(value, name="global_step", trainable=False)
    with pytest.raises(TypeError, match="must be a variable that holds one integer"):
        hl.train.get_global_step()
    with pytest.raises(TypeError, match="must be a variable that holds one integer"):
        hl.train.assert_global_step(hl.constant(1))


def test_variable_only_called_global_step_is_no_problem(sess):
    hl.Variable(np.float32(0), name="global_step", trainable=False)
    other = hl.Variable(1.0, name="other")
    large = hl.latch(hl.op(lambda value: value > 2)(other))
    sess.run(hl.global_variables_initializer(), run_metadata=hl.RunMetadata())
    assert sess.run(other) == 1.0
    for value in (2.0, 3.0):
        sess.run(other.assign(value))
        sess.run(large)
    assert sess.latched(large, wait=True) == 2, "the number of the run"
    with pytest.raises(TypeError, match="must be a variable that holds one integer"):
        _ = sess.global_step


def test_session_without_a_global_step_raises(sess):
    with pytest.raises(RuntimeError, match="The graph has no global step"):
        _ = sess.global_step


def test_uninitialised_global_step_is_named(sess):
    hl.train.create_global_step()
    with pytest.raises(errors.FailedPreconditionError, match="'global_step' has no value yet"):
        _ = sess.global_step


def test_gradient_is_taken_at_the_value_that_the_loss_reads(sess):
    x = hl.Variable(3.0, name="x")
    before = x * x
    with hl.control_dependencies([x.assign(5.0)]):
        (grad,) = hl.gradients(before, x)
        after = x * x
        (later,) = hl.gradients(after, x)
        (both,) = hl.gradients([before, after], x)
    sess.run(x.initializer)
    assert sess.run([before, grad]) == [9.0, 6.0]
    assert sess.run([after, later]) == [25.0, 10.0]
    with pytest.raises(errors.InvalidArgumentError, match="'x' is read both before and after an update"):
        sess.run(both)


def test_part_of_a_value_that_the_loss_reads_as_a_whole_has_no_gradient():
    v = hl.Variable({"a": 1.0, "b": 2.0}, name="v")
    loss = hl.op(lambda v: v["a"] * v["b"], name="product")(v)
    with pytest.raises(ValueError, match=r"'product' reads 'v:0' as a whole.*take that part of its gradient"):
        hl.gradients(loss, v["a"])


def test_narrow_integers_overflow_as_on_the_device(sess):
    n = hl.Variable(np.uint8(250), name="n", trainable=False)
    bump = n.assign_add(10)
    sess.run(n.initializer)
    sess.run(bump)
    assert sess.run(n) == 4
    wide = hl.Variable(2**31 - 1, name="wide", trainable=False)
    grow = wide.assign_add(1)
    sess.run(wide.initializer)
    sess.run(wide)
    sess.run(grow)
    assert sess.run(wide) == sess.snapshot([wide])["wide"] == -(2**31)
