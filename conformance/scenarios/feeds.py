"""What is fed."""

from __future__ import annotations

import numpy as np

from conformance.parts import raised, recorder, said
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("feeds.hook_and_caller")
def _(s: System) -> Record:
    """The feeds of hooks are merged with the caller's."""
    x, y = (s.placeholder("float32", [], name=name) for name in "xy")
    both = x + y
    with s.train.MonitoredSession(hooks=[recorder(s, [], feeds={y: 10.0})]) as sess:
        return {"sum": sess.run(both, {x: 1.0})}


@scenario("feeds.conflict_of_two_hooks")
def _(s: System) -> Record:
    """Two hooks may not feed the same tensor."""
    x = s.placeholder("float32", [], name="x")
    hooks = [recorder(s, [], name, feeds={x: 1.0}) for name in "ab"]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        return {"error": (said(sess.run, x) or "").partition(" Conflict")[0]}


@scenario("feeds.conflict_with_the_caller")
def _(s: System) -> Record:
    """A hook may not feed what the caller feeds."""
    x = s.placeholder("float32", [], name="x")
    with s.train.MonitoredSession(hooks=[recorder(s, [], feeds={x: 1.0})]) as sess:
        return {"error": (said(sess.run, x, {x: 2.0}) or "").partition(" Conflict")[0]}


@scenario("feeds.any_tensor")
def _(s: System) -> Record:
    """Any tensor may be fed, not only placeholders."""
    x = s.constant(2.0)
    y = x * 3.0
    with s.Session() as sess:
        return {"x": sess.run(y + 1.0, {x: 5.0}), "y": sess.run(y + 1.0, {y: 5.0})}


@scenario("feeds.what_is_fed_is_not_computed")
def _(s: System) -> Record:
    """What a fed tensor would need is not computed."""
    x = s.placeholder("float32", [], name="x")
    y = x * 3.0
    with s.Session() as sess:
        return {"fed": sess.run(y, {y: 1.0}), "not": raised(sess.run, y)}


@scenario("feeds.missing")
def _(s: System) -> Record:
    """A placeholder that is not fed is an invalid argument, which names it."""
    x = s.placeholder("float32", [], name="images")
    with s.Session() as sess:
        try:
            sess.run(x * 2.0)
        except s.errors.InvalidArgumentError as error:
            return {"named": "images" in str(error)}
    return {"named": None}


@scenario("feeds.wrong_shape")
def _(s: System) -> Record:
    """A value of a wrong shape is refused."""
    x = s.placeholder("float32", [2], name="x")
    with s.Session() as sess:
        return {"error": raised(sess.run, x, {x: [1.0, 2.0, 3.0]})}


@scenario("feeds.open_dimension")
def _(s: System) -> Record:
    """An open dimension takes any length; no shape at all takes any shape."""
    x, y = s.placeholder("float32", [None, 2], name="x"), s.placeholder("float32", name="y")
    with s.Session() as sess:
        sums = [sess.run(s.total(x), {x: np.ones((n, 2))}) for n in (1, 3)]
        return {"sums": sums, "any": [sess.run(s.total(y), {y: value}) for value in (2.0, [[1.0, 2.0]])]}


@scenario("feeds.casts_within_a_kind")
def _(s: System) -> Record:
    """A float of another width is cast; an integer becomes a float."""
    x = s.placeholder("float32", [], name="x")
    with s.Session() as sess:
        values = [sess.run(x * 1.0, {x: value}) for value in (np.float64(0.1), np.int32(3), 4)]
        return {"values": values, "bool": raised(sess.run, x * 1.0, {x: True})}


@scenario("feeds.float_to_integer")
def _(s: System) -> Record:
    """A float for an integer placeholder."""
    x = s.placeholder("int32", [], name="x")
    with s.Session() as sess:
        return {"error": raised(sess.run, x * 1, {x: np.float32(1.7)})}


@scenario("feeds.too_large")
def _(s: System) -> Record:
    """A finite number that the dtype cannot hold."""
    x = s.placeholder("float32", [], name="x")
    with s.Session() as sess:
        return {"error": raised(sess.run, x * 1.0, {x: np.float64(1e300)})}


@scenario("feeds.something_else")
def _(s: System) -> Record:
    """A key that is no tensor is a `TypeError`, and so is a tensor as value."""
    x = s.placeholder("float32", [], name="x")
    with s.Session() as sess:
        return {"key": raised(sess.run, x, {3: 1.0}), "value": raised(sess.run, x, {x: s.constant(1.0)})}


@scenario("feeds.by_name")
def _(s: System) -> Record:
    """A tensor may be fed by its name."""
    x = s.placeholder("float32", [], name="x")
    with s.Session() as sess:
        return {"value": sess.run(x * 2.0, {"x:0": 4.0})}


@scenario("feeds.several_in_one_key")
def _(s: System) -> Record:
    """A key may be a tuple of tensors, with a tuple of values."""
    x, y = (s.placeholder("float32", [], name=name) for name in "xy")
    with s.Session() as sess:
        return {
            "value": sess.run(x + y * 10.0, {(x, y): (1.0, 2.0)}),
            "other_length": raised(sess.run, x, {(x, y): (1.0,)}) is not None,
        }
