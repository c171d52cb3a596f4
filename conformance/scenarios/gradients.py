"""Gradients, and what optimizers make of them."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _values(s: System, fetches: Any, feed: Any = None) -> Any:
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        return sess.run(fetches, feed)


@scenario("gradients.of_a_square")
def _(s: System) -> Record:
    """The gradient with respect to a variable and to a placeholder."""
    x, weight = s.placeholder("float32", [], name="x"), s.Variable(3.0, name="weight")
    loss = (weight * x) * (weight * x)
    return {"values": _values(s, s.gradients(loss, [weight, x]), {x: 2.0})}


@scenario("gradients.of_a_matrix_product")
def _(s: System) -> Record:
    """The gradient of a sum of a product of matrices."""
    weight = s.Variable([[1.0, 2.0], [3.0, 4.0]], name="weight")
    x = s.constant([[1.0, -1.0], [0.5, 2.0]])
    return {"values": _values(s, s.gradients(s.total(s.matmul(x, weight)), [weight, x]))}


@scenario("gradients.several_ys")
def _(s: System) -> Record:
    """The gradients of several `ys` are added up."""
    x = s.constant(2.0)
    return {"values": _values(s, s.gradients([x * x, 3.0 * x], [x]))}


@scenario("gradients.of_the_variable_itself")
def _(s: System) -> Record:
    """A `y` that is itself among the `xs` counts with 1."""
    x = s.constant(2.0)
    z = x * x
    return {
        "both": _values(s, s.gradients([x, z], [x])),
        "itself": _values(s, s.gradients(x, [x])),
        "each": _values(s, s.gradients([x, z], [x, z])),
    }


@scenario("gradients.no_way")
def _(s: System) -> Record:
    """Where no way leads the gradient is None."""
    x, y = s.constant(2.0), s.constant(3.0)
    found = s.gradients(x * 2.0, [x, y])
    return {"none": [gradient is None for gradient in found]}


@scenario("gradients.in_between")
def _(s: System) -> Record:
    """The gradient with respect to a tensor in between."""
    x = s.constant(2.0)
    y = x * x
    z = y * 3.0 + x
    return {"values": _values(s, s.gradients(z, [y, x]))}


@scenario("gradients.second_order")
def _(s: System) -> Record:
    """The gradient of a gradient."""
    x = s.constant(2.0)
    (first,) = s.gradients(x * x * x, [x])
    (second,) = s.gradients(first, [x])
    return {"values": _values(s, [first, second])}


@scenario("gradients.single_x")
def _(s: System) -> Record:
    """A single `x` without a list gives a list of one."""
    x = s.constant(2.0)
    found = s.gradients(x * x, x)
    return {"length": len(found), "values": _values(s, found)}


@scenario("gradients.inside_a_block")
def _(s: System) -> Record:
    """A gradient made in a block reads what its forward pass has read: the value from before the update."""
    weight = s.Variable(3.0, name="weight")
    read = weight.read_value()
    loss = read * read
    (gradient,) = s.gradients(loss, [read])
    with s.control_dependencies([gradient]):
        update = weight.assign_add(1.0)
    return {"values": _values(s, [gradient, update])}


@scenario("gradients.feeding_what_lies_between")
def _(s: System) -> Record:
    """The gradient at a fed value."""
    x = s.constant(2.0)
    y = x * 5.0
    z = y * y
    (gradient,) = s.gradients(z, [y])
    return {"value": _values(s, gradient, {y: 1.0})}


@scenario("gradients.through_an_update")
def _(s: System) -> Record:
    """No gradient goes through an update."""
    weight, x = s.Variable(3.0, name="weight"), s.constant(2.0)
    loss = weight.assign_add(x) * 2.0
    return {"none": s.gradients(loss, [x])[0] is None}


@scenario("gradients.of_reads_before_and_after_an_update")
def _(s: System) -> Record:
    """The gradient with respect to a variable that is read before and after an update of the same run."""
    weight = s.Variable(3.0, name="weight")
    before = weight.read_value()
    with s.control_dependencies([before]):
        update = weight.assign_add(1.0)
    with s.control_dependencies([update]):
        after = weight.read_value()
    (gradient,) = s.gradients(before * before + after * after, [weight])
    return {"error": raised(_values, s, gradient)}


@scenario("gradients.of_a_value_used_often")
def _(s: System) -> Record:
    """The ways from one tensor to another are added up, through several layers."""
    x = s.Variable([1.0, -2.0], name="x")
    a = x * x
    b = a * x + a
    loss = s.total(b * a) + s.total(x)
    return {"values": _values(s, s.gradients(loss, [x, a]))}


@scenario("gradients.third_order")
def _(s: System) -> Record:
    """Gradients of gradients of gradients, with respect to variables."""
    x = s.Variable(1.5, name="x")
    y = x * x * x * x
    found = []
    for _ in range(3):
        (y,) = s.gradients(y, [x])
        found.append(y)
    return {"values": _values(s, found)}


@scenario("gradients.behind_an_update")
def _(s: System) -> Record:
    """A loss that reads behind an update has the gradient at the new value."""
    weight = s.Variable(3.0, name="weight")
    with s.control_dependencies([weight.assign_add(1.0)]):
        read = weight.read_value()
    loss = read * read
    return {"values": _values(s, [loss, *s.gradients(loss, [weight])])}


@scenario("gradients.of_an_integer")
def _(s: System) -> Record:
    """An integer has no gradient."""
    count = s.Variable(3, name="count")
    x = s.constant(2.0)
    return {"error": raised(s.gradients, x * 2.0, [count])}


@scenario("gradients.of_nothing")
def _(s: System) -> Record:
    """`xs` must be tensors."""
    x = s.constant(2.0)
    return {"refused": raised(s.gradients, x, None) is not None}


# Optimizers -----------------------------------------------------------------------------------------------------------


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
