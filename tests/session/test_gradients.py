"""Gradients: how often each part is computed, allowed operations between loss and x, and where a path ends."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl


@pytest.fixture
def sess():
    with hl.Session() as session:
        yield session


class Counted:
    """A function that counts how often it is really computed."""

    def __init__(self, fn):
        self.fn = fn
        self.count = 0

    def __call__(self, *args):
        jax.debug.callback(self._seen)
        return self.fn(*args)

    def _seen(self):
        self.count += 1


def scanned(w, x):
    """A recurrent network of eight steps: XLA finds no duplicate of it."""
    return jax.lax.scan(lambda h, _: (jnp.tanh(h * w + x), None), jnp.zeros_like(x), None, length=8)[0]


def test_gradients_that_share_a_forward_pass_compute_it_once(sess):
    a, b = hl.Variable(0.5, name="a"), hl.Variable(0.25, name="b")
    shared = Counted(scanned)
    h = hl.op(shared)(a, b)
    loss, other = h * h, hl.op(jnp.sin)(h)
    grads = [hl.gradients(loss, a)[0], hl.gradients(other, b)[0], hl.gradients([loss, other], [a, b])[1]]
    sess.run(hl.global_variables_initializer())
    values = [float(value) for value in sess.run([loss, *grads])]
    jax.effects_barrier()
    assert shared.count == 1

    def both(a, b):
        return scanned(a, b) ** 2 + jnp.sin(scanned(a, b))

    expected = [
        jax.grad(lambda a: scanned(a, 0.25) ** 2)(0.5),
        jax.grad(lambda b: jnp.sin(scanned(0.5, b)))(0.25),
        jax.grad(both, argnums=1)(0.5, 0.25),
    ]
    np.testing.assert_allclose(values[1:], expected, rtol=1e-5)


def test_a_gradient_of_a_gradient_computes_the_forward_pass_once(sess):
    w = hl.Variable(0.5, name="w")
    counted = Counted(scanned)
    y = hl.op(counted)(w, hl.constant(0.25))
    (first,) = hl.gradients(y, w)
    (second,) = hl.gradients(first * first + y, w)
    (third,) = hl.gradients(second, w)
    sess.run(w.initializer)
    values = sess.run([y, first, second, third])
    jax.effects_barrier()
    assert counted.count == 1

    def f(w):
        return scanned(w, 0.25)

    def penalised(w):
        return jax.grad(f)(w) ** 2 + f(w)

    expected = [f(0.5), jax.grad(f)(0.5), jax.grad(penalised)(0.5), jax.grad(jax.grad(penalised))(0.5)]
    np.testing.assert_allclose([float(v) for v in values], expected, rtol=1e-4)


def test_a_gradient_penalty_trains_like_plain_jax(sess):
    w = hl.Variable(np.array([[0.5, -0.2], [0.1, 0.7]], "float32"), name="w")
    x = hl.placeholder("float32", [None, 2], name="x")

    def critic(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    score = hl.op(critic)(w, x)
    (grad,) = hl.gradients(score, x)
    penalty = hl.op(lambda s: jnp.mean((jnp.linalg.norm(s, axis=1) - 1.0) ** 2))(grad)
    (grad,) = hl.gradients(score + 10.0 * penalty, w)
    values = np.random.default_rng(0).normal(size=(6, 2)).astype("float32")
    sess.run(w.initializer)

    def plain(w):
        s = jax.grad(critic, argnums=1)(w, values)
        return critic(w, values) + 10.0 * jnp.mean((jnp.linalg.norm(s, axis=1) - 1.0) ** 2)

    np.testing.assert_allclose(sess.run(grad, {x: values}), jax.grad(plain)(sess.run(w)), rtol=1e-4)


def test_one_output_of_many_is_differentiated_alone(sess):
    w = hl.Variable(2.0, name="w")

    def model(w):
        # Going back through the second would give NaN: it must not be touched.
        return {"loss": w**2, "aux": jnp.sqrt(w - w), "count": jnp.int32(3), "key": jax.random.key(0)}

    (grad,) = hl.gradients(hl.op(model)(w)["loss"], w)
    sess.run(w.initializer)
    assert sess.run(grad) == 4.0


def test_repeated_x_gets_the_same_gradient_twice(sess):
    v, w = hl.Variable(2.0, name="v"), hl.Variable(3.0, name="w")
    y = v * 3.0 + w * v
    sess.run(hl.global_variables_initializer())
    assert sess.run(hl.gradients(y, [v, v])) == [6.0, 6.0]
    assert sess.run(hl.gradients(y, [v, w, v])) == [6.0, 2.0, 6.0]


def test_derivatives_are_total(sess):
    a = hl.Variable(1.0, name="a")
    b = a * 2.0
    sess.run(a.initializer)
    assert sess.run(hl.gradients(a + b, [a, b])) == [3.0, 1.0]


def test_dropout_on_the_path_uses_the_mask_of_the_run(sess):
    w = hl.Variable(np.ones(64, "float32"), name="w")
    dropped = hl.op(lambda w, key: jnp.where(jax.random.bernoulli(key, 0.5, w.shape), w * 2.0, 0.0))(w, hl.random_key())
    update = w.assign_add(0.0 * dropped)
    with hl.control_dependencies([update]):
        (grad,) = hl.gradients(hl.op(jnp.sum)(dropped), w)
    sess.run(hl.global_variables_initializer())
    for _ in range(3):
        value, gradient = sess.run([dropped, grad])
        np.testing.assert_array_equal(value, gradient)
        assert 0 < np.count_nonzero(value) < 64


def test_update_between_loss_and_x_counts_as_a_constant_with_a_warning(sess, caplog):
    x, v = hl.Variable(2.0, name="x"), hl.Variable(0.0, name="v", trainable=False)
    with caplog.at_level(logging.WARNING, logger="hookline"):
        written = v.assign(x * 2.0)
        (mixed,) = hl.gradients(written * 3.0 + x, x)
        (none,) = hl.gradients(written * 3.0, x)
        (of_the_result,) = hl.gradients(written * 3.0, written)
        (quiet,) = hl.gradients(x * x, x)
    assert none is None
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "Update 'v/assign'" in lines[0]
    assert "its result counts as a constant" in lines[0]
    sess.run(hl.global_variables_initializer())
    assert sess.run([mixed, of_the_result, quiet]) == [1.0, 3.0, 4.0]


def test_integers_have_no_gradient(sess):
    w = hl.Variable(np.array([1.0, 3.0, 2.0], "float32"), name="w")
    best = hl.op(jnp.argmax)(w)
    accuracy = hl.op(lambda best: (best == 1).astype(jnp.float32))(best)
    assert hl.gradients(accuracy, w) == [None]
    (grad,) = hl.gradients(accuracy + hl.op(jnp.sum)(w), w)
    sess.run(w.initializer)
    assert sess.run(grad).tolist() == [1.0, 1.0, 1.0]


def test_parts_of_arrays_may_be_between_loss_and_x(sess):
    w = hl.Variable({"m": np.arange(6.0, dtype="float32").reshape(2, 3)}, name="w")
    row = w["m"][1]
    loss = hl.op(jnp.sum)(row * row[0]) + w["m"][0, 1]
    whole, part = hl.gradients(loss, w)[0], hl.gradients(loss, row)[0]
    sess.run(w.initializer)
    assert sess.run(whole["m"]).tolist() == [[0.0, 1.0, 0.0], [15.0, 3.0, 3.0]]
    assert sess.run(part).tolist() == [15.0, 3.0, 3.0]


def test_fed_value_between_loss_and_x_ends_the_path(sess):
    w = hl.Variable(2.0, name="w")
    h = w * w
    loss = h * 3.0
    at_w, at_h = hl.gradients(loss, [w, h])
    sess.run(w.initializer)
    assert sess.run([at_w, at_h]) == [12.0, 3.0]
    assert sess.run([loss, at_w, at_h], {h: 5.0}) == [15.0, 0.0, 3.0]


def test_only_the_gradients_own_operations_wait_for_its_control_inputs(sess):
    """Its control input is computed from the loss, and lies between x and another loss."""
    w, seen = hl.Variable(2.0, name="w"), hl.Variable(0.0, name="seen", trainable=False)
    loss = w * w
    note = seen.assign_add(loss)
    with hl.control_dependencies([note]):
        (grad,) = hl.gradients(loss, w)
        later = loss * w
    (through,) = hl.gradients(later, w)
    sess.run(hl.global_variables_initializer())
    assert sess.run(loss) == 4.0
    assert sess.run(seen) == 0.0  # the loss waits for nothing
    assert sess.run(grad) == 4.0
    assert sess.run(seen) == 4.0  # the gradient does
    assert sess.run(through) == 12.0
    assert sess.run(seen) == 8.0  # and so do operations after the note


@pytest.mark.parametrize("inner", ["jit", "checkpoint", "custom_vjp"])
def test_transformed_functions_are_differentiated_by_their_own_rules(sess, inner):
    @jax.custom_vjp
    def clipped(x):
        return x * x

    clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(2 * x * g, -1.0, 1.0),))
    fn = {"jit": jax.jit(jnp.sin), "checkpoint": jax.checkpoint(jnp.sin), "custom_vjp": clipped}[inner]
    w = hl.Variable(2.0, name="w")
    (grad,) = hl.gradients(hl.op(fn)(w), w)
    (second,) = hl.gradients(grad * grad, w)
    sess.run(w.initializer)
    expected = [jax.grad(fn)(2.0), jax.grad(lambda w: jax.grad(fn)(w) ** 2)(2.0)]
    np.testing.assert_allclose(sess.run([grad, second]), expected, rtol=1e-5)


def test_gradients_of_another_graph_are_refused():
    with hl.Graph().as_default():
        foreign = hl.Variable(1.0, name="foreign")
    with pytest.raises(ValueError, match="'foreign:0' belongs to another graph"):
        hl.gradients(hl.Variable(1.0) * 2.0, foreign)


def stacking(h):
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry), carry.sum()), h, None, length=5)


@pytest.mark.parametrize("part", [0, 1])
def test_scan_with_stacked_results_is_differentiated_by_either_result(sess, part):
    x = hl.Variable(np.array([0.1, 0.5, 1.0], "float32"), name="x")
    loss = hl.op(jnp.sum)(hl.op(stacking)(x)[part] ** 2)
    (grad,) = hl.gradients(loss, x)
    (second,) = hl.gradients(hl.op(jnp.sum)(grad**2), x)
    sess.run(x.initializer)

    def plain(x):
        return jnp.sum(stacking(x)[part] ** 2)

    at = jnp.array([0.1, 0.5, 1.0])
    expected = [jax.grad(plain)(at), jax.grad(lambda x: jnp.sum(jax.grad(plain)(x) ** 2))(at)]
    results, (watched,) = sess.backend.run_with_hook_fetches([grad], ([second],))
    np.testing.assert_allclose([*results, *watched], expected, rtol=1e-5, atol=1e-6)


def test_mapped_functions_have_second_derivatives(sess):
    x = hl.Variable(np.array([0.1, 0.5, 1.0], "float32"), name="x")
    loss = hl.op(lambda x: jnp.sum(jax.lax.map(jnp.sin, x) ** 2))(x)
    (grad,) = hl.gradients(loss, x)
    (second,) = hl.gradients(hl.op(jnp.sum)(grad), x)
    sess.run(x.initializer)
    np.testing.assert_allclose(sess.run(second), 2 * np.cos(2 * np.array([0.1, 0.5, 1.0])), rtol=1e-4)


def test_repeated_y_counts_twice(sess):
    x = hl.Variable(3.0, name="x")
    y = x * x
    pair = hl.op(lambda x: {"a": x * x, "b": x})(x)
    both = hl.gradients([y, y], x), hl.gradients([pair, pair["a"]], x)
    sess.run(x.initializer)
    assert sess.run(both) == ([12.0], [13.0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Checked:
    """A value whose class checks its fields."""

    x: jax.Array

    def __post_init__(self):
        if isinstance(self.x, jax.Array) and self.x.ndim != 1:
            raise ValueError("one dimension is required")
        assert hasattr(self.x, "ndim") or type(self.x) is object


def test_values_of_classes_with_checked_fields_may_be_between_loss_and_x(sess):
    w = hl.Variable(np.ones(3, "float32"), name="w")
    made = hl.op(Checked)(w * 2.0)
    loss = hl.op(lambda b: (b.x**2).sum())(made) + hl.op(jnp.sum)(made.x)
    (grad,) = hl.gradients(loss, w)
    sess.run(w.initializer)
    assert sess.run(grad).tolist() == [10.0, 10.0, 10.0]


def test_two_results_that_are_one_array_are_distinguished(sess):
    w = hl.Variable(2.0, name="w")
    pair = hl.op(lambda w: (w, w))(w)
    (grad,) = hl.gradients(pair[0] * 3.0 + pair[1] * pair[1], w)
    sess.run(w.initializer)
    assert sess.run(grad) == 7.0


def test_part_is_distinguished_from_an_updated_other_part(sess):
    p = hl.Variable({"a": 2.0, "b": 3.0}, name="p")
    square = p["a"] ** 2
    with hl.control_dependencies([p.assign({"a": 5.0, "b": 7.0})]):
        loss = square * hl.op(lambda b: b)(p["b"])
    (grad,) = hl.gradients(loss, p["a"])
    sess.run(p.initializer)
    assert sess.run(grad) == 28.0
