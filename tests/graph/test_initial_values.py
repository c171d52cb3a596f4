"""Initializers do not depend on the control dependencies around them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl


def ones():
    return hl.op(jnp.ones).node(3)


MADE_IN_THE_BLOCK = {
    "a value": lambda v: hl.Variable(1.0),
    "a function": lambda v: hl.Variable(lambda: jnp.ones(3)),
    "a NumPy function": lambda v: hl.Variable(lambda: np.ones(3)),
    "a constant": lambda v: hl.Variable(hl.constant(1.0)),
    "an operation": lambda v: hl.Variable(ones()),
    "operations on an operation": lambda v: hl.Variable({"a": ones() * 2.0, "b": (ones() + 1.0)[0]}),
    "a host operation": lambda v: hl.Variable(hl.host_op(lambda: np.ones(3), spec=np.ones(3))()),
    "a function of operations": lambda v: hl.Variable(lambda: ones() * 2.0),
    "another's initial value": lambda v: hl.Variable(v.initialized_value() * 2.0),
    "a random value": lambda v: hl.Variable(hl.op(lambda key: jnp.ones(3))(hl.random_key())),
    "a tree of variables": lambda v: hl.variables({"a": np.ones(3), "b": 1.0}),
    "a tree of variables from operations": lambda v: hl.variables(lambda: {"a": ones() + 1.0}),
    "an optimizer's opt_state": lambda v: hl.train.Optimizer(optax.adam(0.1)).minimize(v * v),
    "opt_state of all together": lambda v: hl.train.Optimizer(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    ).minimize(v * v * hl.Variable(2.0)),
    "an average of a variable": lambda v: hl.train.ExponentialMovingAverage(0.9).apply([v]),
    "an average of a tensor": lambda v: hl.train.ExponentialMovingAverage(0.9, zero_debias=True).apply([v * 2.0]),
    "the global step": lambda v: hl.train.get_or_create_global_step(),
}


@pytest.mark.parametrize("name", MADE_IN_THE_BLOCK)
def test_initializer_runs_and_feeds_nothing_of_its_control_dependencies(name):
    v = hl.Variable(3.0, name="v")
    updates = hl.Variable(0, name="updates", trainable=False)
    x = hl.placeholder("float32", [], name="x")
    # The block updates something, reads a variable without a value, and needs a feed.
    with hl.control_dependencies([updates.assign_add(1), v * x]), hl.control_dependencies([updates.assign_add(2)]):
        made = MADE_IN_THE_BLOCK[name](v)
    initialise = hl.global_variables_initializer()
    with hl.Session() as sess:
        sess.run(initialise)
        assert sess.run(updates) == 0
        assert sess.uninitialized() == []
        if isinstance(made, hl.Operation):  # the update itself does wait for the block
            sess.run(made, {x: 1.0})
            assert sess.run(updates) == 3


def test_read_runs_no_control_dependencies_of_the_variable():
    updates = hl.Variable(0, name="updates", trainable=False)
    with hl.control_dependencies([updates.assign_add(1)]):
        v = hl.Variable(1.0, name="v")
        inside = v * 2.0
    outside = v * 2.0
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert sess.run([v, outside]) == [1.0, 2.0]
        assert sess.run(updates) == 0
        assert sess.run(inside) == 2.0
        assert sess.run(updates) == 1


def test_control_dependencies_on_initializers_order_initial_values():
    a = hl.Variable(2.0, name="a")
    with hl.control_dependencies([a.initializer]):
        b = hl.Variable(a * 10.0, name="b")
    with hl.Session() as sess:
        sess.run(b.initializer)
        assert sess.run([a, b]) == [2.0, 20.0]


def test_dtype_applies_to_all_leaves_of_an_initial_value():
    half = hl.Variable([1.0, 2.0], name="half", dtype="float16")
    drawn = hl.Variable(lambda: jnp.ones(3), name="drawn", dtype=jnp.bfloat16)
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert [value.dtype for value in sess.run([half, drawn])] == [jnp.float16, jnp.bfloat16]


def test_tensor_made_under_control_dependencies_is_an_initial_value_elsewhere():
    updates, x = hl.Variable(0, name="updates", trainable=False), hl.placeholder("float32", [], name="x")
    drawn = []
    with hl.control_dependencies([updates.assign_add(1), x]):
        made = hl.constant(1.0) * 3.0
        shared = hl.host_op(lambda: drawn.append(1) or float(len(drawn)), spec=0.0)()
        base = hl.constant(3.0)
        grads = hl.gradients(base * base, base)[0]
    v = hl.Variable(made, name="v")
    a, b = hl.Variable(shared, name="a"), hl.Variable(shared, name="b")
    g = hl.Variable(grads, name="g")
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert sess.run([v, a, b, g, updates]) == [3.0, 1.0, 1.0, 6.0, 0]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: hl.Variable(300, name="v", dtype="uint8"), ValueError, "holds 300, but uint8"),
        (lambda: hl.Variable(-1, name="v", dtype="uint8"), ValueError, "holds -1, but uint8"),
        (lambda: hl.Variable(1e6, name="v", dtype="float16"), ValueError, "holds 1e.06, which float16 cannot hold"),
        (lambda: hl.Variable(1.7, name="v", dtype="int32"), TypeError, "'v': its initial value is of dtype float32"),
        (lambda: hl.Variable(lambda: 2**40, name="v"), ValueError, "'v': its function returned a number too large"),
        (lambda: hl.Variable(lambda: "a", name="v"), TypeError, "'v' requires .* its function returned 'a'"),
    ],
)
def test_misfit_initial_value_is_refused_at_its_definition(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_host_computed_initial_value_is_checked_when_it_is_known():
    v = hl.Variable(lambda: np.int64(2**40), name="v")
    with (
        hl.Session() as sess,
        pytest.raises(hl.errors.InvalidArgumentError, match="returned a value that holds 1099511627776"),
    ):
        sess.run(v.initializer)


def test_function_that_returns_a_list_of_numbers_gives_an_array():
    v = hl.Variable(lambda: [1.0, 2.0], name="v")
    assert v.shape == (2,)
    with hl.Session() as sess:
        sess.run(v.initializer)
        sess.load({"v": [3.0, 4.0]})
        assert sess.run(v).tolist() == [3.0, 4.0]
