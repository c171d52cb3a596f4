"""Optimizers: the same numbers from the same steps."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _loss(s: System) -> tuple[Any, Any]:
    """A quadratic loss of two variables and what it is fed."""
    x = s.placeholder("float32", [None, 2], name="x")
    weight, bias = s.Variable([[1.0], [-1.0]], name="weight"), s.Variable(0.5, name="bias")
    error = s.matmul(x, weight) + bias - 2.0
    return s.total(error * error), {x: [[1.0, 0.5], [0.0, 2.0]]}


def _trained(s: System, optimizer: Any, steps: int = 5) -> Record:
    step = s.train.get_or_create_global_step()
    loss, feed = _loss(s)
    train_op = optimizer.minimize(loss, global_step=step)
    losses = []
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        for _ in range(steps):
            losses.append(float(sess.run(loss, feed)))
            sess.run(train_op, feed)
        return {"losses": losses, "step": int(sess.run(step)), "values": sess.run(s.trainable_variables())}


@scenario("optimizer.sgd")
def _(s: System) -> Record:
    """Gradient descent: the losses, the variables and the global step."""
    return _trained(s, s.sgd(0.05))


@scenario("optimizer.adam")
def _(s: System) -> Record:
    """Adam: the same numbers."""
    return _trained(s, s.adam(0.1), steps=8)


@scenario("optimizer.only_trainable")
def _(s: System) -> Record:
    """Only trainable variables are changed."""
    weight, fixed = s.Variable(1.0, name="weight"), s.Variable(1.0, name="fixed", trainable=False)
    loss = weight * weight + fixed * fixed
    train_op = s.sgd(0.1).minimize(loss)
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        sess.run(train_op)
        return {"values": sess.run([weight, fixed])}


@scenario("optimizer.var_list")
def _(s: System) -> Record:
    """`var_list` says which variables to change."""
    a, b = s.Variable(1.0, name="a"), s.Variable(1.0, name="b")
    train_op = s.sgd(0.1).minimize(a * a + b * b, var_list=[b])
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        sess.run(train_op)
        return {"values": sess.run([a, b])}


@scenario("optimizer.compute_and_apply")
def _(s: System) -> Record:
    """Gradients may be changed between `compute_gradients` and `apply_gradients`."""
    step = s.train.get_or_create_global_step()
    weight = s.Variable(1.0, name="weight")
    unused = s.Variable(1.0, name="unused")
    optimizer = s.sgd(0.5)
    pairs = optimizer.compute_gradients(weight * weight)
    names = [[variable.op.name, gradient is None] for gradient, variable in pairs]
    clipped = [(gradient * 0.1, variable) for gradient, variable in pairs if gradient is not None]
    train_op = optimizer.apply_gradients(clipped, global_step=step)
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        sess.run(train_op)
        return {"pairs": names, "values": sess.run([weight, unused, step])}


@scenario("optimizer.nothing_to_train")
def _(s: System) -> Record:
    """No variables, or no gradients, is a `ValueError`."""
    x = s.constant(1.0)
    none = raised(s.sgd(0.1).minimize, x * x)
    s.Variable(1.0, name="weight")
    return {
        "no_variables": none,
        "no_gradients": raised(s.sgd(0.1).minimize, x * x),
        "no_pairs": raised(s.sgd(0.1).apply_gradients, []),
    }


@scenario("optimizer.trainable_variables_of_the_graph")
def _(s: System) -> Record:
    """Slots are no trainable variables."""
    weight = s.Variable(1.0, name="weight")
    s.adam(0.1).minimize(weight * weight)
    return {"trainable": [variable.op.name for variable in s.trainable_variables()]}


@scenario("optimizer.step_counts_after_the_updates")
def _(s: System) -> Record:
    """Without a global step nothing is counted."""
    step, _ = counting(s)
    weight = s.Variable(1.0, name="weight")
    train_op = s.sgd(0.1).minimize(weight * weight)
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        sess.run(train_op)
        return {"step": int(sess.run(step)), "value": sess.run(train_op)}
