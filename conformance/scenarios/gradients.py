"""Gradients."""

from __future__ import annotations

from typing import Any

from conformance.parts import raised
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
    """The gradient with respect to None, or to a number."""
    x = s.constant(2.0)
    return {"none": raised(s.gradients, x, None) is not None, "number": raised(s.gradients, x, [3.0])}


@scenario("gradients.beside_an_update_of_another_variable")
def _(s: System) -> Record:
    """A gradient with respect to one variable, where another is read before and after its update."""
    weight, other = s.Variable(3.0, name="weight"), s.Variable(1.0, name="other")
    before = other.read_value()
    with s.control_dependencies([before]):
        update = other.assign_add(1.0)
    with s.control_dependencies([update]):
        after = other.read_value()
    loss = weight * weight * before + weight * after
    return {"values": _values(s, s.gradients(loss, [weight]))}
