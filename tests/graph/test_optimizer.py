"""The rate of an optimizer: how it is set, changed and seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl


@pytest.fixture
def sess():
    with hl.Session() as session:
        yield session


def quadratic():
    w = hl.Variable(np.array([4.0, -2.0], "float32"), name="w")
    return w, hl.op(lambda w: jnp.sum(w**2))(w), hl.train.get_or_create_global_step()


def expected(make, rates):
    """Returns Optax's result for the same, with another rate in each step."""
    params = jnp.array([4.0, -2.0])
    state = make(0.0).init(params)
    for rate in rates:
        changes, state = make(rate).update(2 * params, state, params)
        params = optax.apply_updates(params, changes)
    return params


RATES = [0.5, 0.25, 0.125, 0.0625]


def given_as_variable(sess, make, loss, step):
    rate = hl.Variable(0.5, name="rate", trainable=False)
    optimizer = hl.train.Optimizer(make, learning_rate=rate)
    train, halve = optimizer.minimize(loss, step), rate.assign(rate / 2)
    sess.run(hl.global_variables_initializer())
    for _ in RATES:
        yield sess.run([train, optimizer.learning_rate])[1]
        sess.run(halve)


def given_as_placeholder(sess, make, loss, step):
    rate = hl.placeholder("float32", [], name="rate")
    optimizer = hl.train.Optimizer(make, learning_rate=rate)
    train = optimizer.minimize(loss, step)
    sess.run(hl.global_variables_initializer())
    for value in RATES:
        yield sess.run([train, optimizer.learning_rate], {rate: value})[1]


def given_as_tensor(sess, make, loss, step):
    return given(sess, hl.train.Optimizer(make, learning_rate=hl.op(lambda step: 0.5 / 2.0**step)(step)), loss, step)


def given_as_schedule(sess, make, loss, step):
    return given(sess, hl.train.Optimizer(make, learning_rate=optax.exponential_decay(0.5, 1, 0.5)), loss, step)


def given(sess, optimizer, loss, step):
    train = optimizer.minimize(loss, step)
    sess.run(hl.global_variables_initializer())
    for _ in RATES:
        yield sess.run([train, optimizer.learning_rate])[1]


WAYS = [given_as_variable, given_as_placeholder, given_as_tensor, given_as_schedule]
RULES = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "momentum": lambda learning_rate: optax.sgd(learning_rate, momentum=0.9),
    "clipped": lambda learning_rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "rule", ["adam", *[pytest.param(rule, marks=pytest.mark.campaign) for rule in RULES if rule != "adam"]]
)
def test_schedule_gives_the_rate_of_its_step(sess, way, rule):
    w, loss, step = quadratic()
    assert list(way(sess, RULES[rule], loss, step)) == RATES
    np.testing.assert_allclose(sess.run(w), expected(RULES[rule], RATES), rtol=1e-6)
    assert sess.run(step) == len(RATES)


def test_constant_rate_gives_the_bits_of_the_transformation(sess):
    w, loss, _ = quadratic()
    other = hl.Variable(np.array([4.0, -2.0], "float32"), name="other")
    named = hl.train.Optimizer(optax.adam, learning_rate=0.1, b1=0.8)
    train = hl.group(
        named.minimize(loss, var_list=[w]),
        hl.train.Optimizer(optax.adam(0.1, b1=0.8)).minimize(hl.op(lambda w: jnp.sum(w**2))(other), var_list=other),
    )
    sess.run(hl.global_variables_initializer())
    for _ in range(5):
        sess.run(train)
    np.testing.assert_array_equal(*sess.run([w, other]))
    assert sess.run(named.learning_rate) == np.float32(0.1)


def test_other_hyperparameters_may_be_tensors_too(sess):
    w, loss, step = quadratic()
    decay = hl.placeholder("float32", [], name="decay")
    train = hl.train.Optimizer(optax.sgd, learning_rate=0.1, momentum=decay).minimize(loss, step)
    sess.run(hl.global_variables_initializer())
    params, trace = jnp.array([4.0, -2.0]), jnp.zeros(2)
    for value in (0.0, 0.5, 0.9):
        sess.run(train, {decay: value})
        trace = 2 * params + value * trace
        params = params - 0.1 * trace
    np.testing.assert_allclose(sess.run(w), params, rtol=1e-6)


def test_rate_is_logged_and_summarised_like_any_tensor(sess):
    _, loss, step = quadratic()
    optimizer = hl.train.Optimizer(optax.sgd, learning_rate=optax.linear_schedule(1.0, 0.0, 4))
    optimizer.minimize(loss, step)
    summary = hl.summary.scalar("rate", optimizer.learning_rate)
    sess.run(step.initializer)
    assert hl.summary.Summary.FromString(sess.run(summary)).value[0].simple_value == 1.0


def test_slots_are_read_out_of_a_checkpoint_by_name(sess, tmp_path):
    _, loss, step = quadratic()
    train = hl.train.Optimizer(optax.adam, learning_rate=0.1).minimize(loss, step)
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    path = hl.train.Saver().save(sess, str(tmp_path / "model"))
    names = [name for name, _ in hl.train.list_variables(path)]
    assert names == ["global_step", "optimizer/w/0/count", "optimizer/w/0/mu", "optimizer/w/0/nu", "w"]
    opt_state = hl.train.load_variable(path, "optimizer/w")
    assert jax.tree.structure(opt_state) == jax.tree.structure({"0": {"count": 0, "mu": 0, "nu": 0}})
    np.testing.assert_allclose(opt_state["0"]["mu"], [0.8, -0.4], rtol=1e-6)
    np.testing.assert_array_equal(hl.train.load_variable(path, "optimizer/w/0/nu"), opt_state["0"]["nu"])


def test_invalid_rate_is_refused_with_the_remedy(sess):
    _, loss, step = quadratic()
    rate = hl.constant(0.1)
    way = r"Optimizer\(optax\.adam, learning_rate="
    with pytest.raises(TypeError, match=f"the Optax transformation contains a tensor.*{way}tensor"):
        hl.train.Optimizer(optax.adam(rate)).minimize(loss, step)
    assert [v.op.name for v in hl.global_variables()] == ["w", "global_step"]  # nothing is left behind
    with pytest.raises(TypeError, match=f"learning_rate cannot be set on a transformation.*{way}"):
        hl.train.Optimizer(optax.adam(0.1), learning_rate=rate)
    with pytest.raises(TypeError, match="a function that makes one and its arguments.*missing 1 required"):
        hl.train.Optimizer(optax.adam)
    with pytest.raises(AttributeError, match=f"inside the Optax transformation.*{way}"):
        _ = hl.train.Optimizer(optax.adam(0.1)).learning_rate
    with pytest.raises(TypeError, match="the initial state depends on initial_accumulator_value"):
        hl.train.Optimizer(optax.adagrad, learning_rate=0.1, initial_accumulator_value=rate).minimize(loss)
    with hl.Graph().as_default():
        w = hl.Variable(1.0)
        with pytest.raises(ValueError, match="is a function of the global step, and the graph has none"):
            hl.train.Optimizer(optax.sgd, learning_rate=optax.constant_schedule(0.1)).minimize(w * w)


def test_trainable_counter_gets_no_gradient(sess):
    w = hl.Variable(1.0, name="w")
    count = hl.Variable(0, name="count")
    optimizer = hl.train.Optimizer(optax.sgd(0.5))
    pairs = optimizer.compute_gradients(w * w)
    assert [(grads is None, variable) for grads, variable in pairs] == [(False, w), (True, count)]
    train = optimizer.apply_gradients(pairs)
    assert hl.get_collection(hl.GraphKeys.TRAIN_OP) == [train]
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    assert sess.run([w, count]) == [0.0, 0]


def test_reading_a_rate_runs_no_control_dependencies(sess):
    _, loss, step = quadratic()
    updates, x = hl.Variable(0, name="updates", trainable=False), hl.placeholder("float32", [], name="x")
    optimizer = hl.train.Optimizer(optax.sgd, learning_rate=lambda step: jnp.where(step == 0, 0.25, 100.0))
    with hl.control_dependencies([updates.assign_add(1), x, step.assign_add(1)]):
        optimizer.minimize(loss)
    summary = hl.summary.scalar("rate", optimizer.learning_rate)
    sess.run(hl.global_variables_initializer())
    sess.run(summary)
    # The rate is that of the step before the run, wherever minimize was called.
    assert sess.run([optimizer.learning_rate, updates, step]) == [0.25, 0, 0]


def test_constant_variable_and_schedule_rates_have_the_same_slots(tmp_path):
    rates = {"number": lambda: 0.1, "variable": lambda: hl.Variable(0.1, trainable=False, collections=[]),
             "schedule": lambda: optax.constant_schedule(0.1)}  # fmt: skip
    saved = None
    for rate in rates.values():
        with hl.Graph().as_default(), hl.Session() as session:
            _, loss, step = quadratic()
            made = rate()
            optimizer = hl.train.Optimizer(optax.adam, learning_rate=made)
            train = optimizer.minimize(loss, step)
            session.run(hl.global_variables_initializer())
            if isinstance(made, hl.Variable):
                session.run(made.initializer)
            if saved:
                hl.train.Saver().restore(session, saved)
            session.run(train)
            saved = hl.train.Saver().save(session, str(tmp_path / "model"), step)
            assert [leaf.shape for leaf in jax.tree.leaves(session.run(optimizer.slots[0]))] == [(), (2,), (2,)]
    assert saved.endswith("-3")


def test_one_optimizer_serves_two_steps_and_two_graphs():
    optimizer = hl.train.Optimizer(optax.sgd, learning_rate=lambda step: jnp.where(step < 10, 0.25, 0.0))
    for _ in range(2):
        with hl.Graph().as_default(), hl.Session() as session:
            w, loss, step = quadratic()
            late = hl.Variable(20, name="late", trainable=False)
            first, second = optimizer.minimize(loss, step), optimizer.minimize(loss, late)
            session.run(hl.global_variables_initializer())
            session.run(first)
            assert session.run(w).tolist() == [2.0, -1.0]
            session.run(second)
            assert session.run(w).tolist() == [2.0, -1.0]


def test_a_rate_is_read_on_a_finalized_graph(sess):
    _, loss, step = quadratic()
    optimizer = hl.train.Optimizer(optax.sgd, learning_rate=0.5)
    optimizer.minimize(loss, step)
    hl.get_default_graph().finalize()
    assert sess.run(optimizer.learning_rate) == 0.5


def test_lists_are_gradients_of_arrays(sess):
    w = hl.Variable([1.0, 2.0], name="w")
    train = hl.train.Optimizer(optax.sgd(1.0)).apply_gradients([([0.5, 1.0], w)])
    sess.run(hl.global_variables_initializer())
    sess.run(train)
    assert sess.run(w).tolist() == [0.5, 1.0]
