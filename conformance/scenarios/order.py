"""Control dependencies, groups, and what a run sees."""

from __future__ import annotations

from typing import Any

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _run(s: System, fetches: Any, times: int = 1) -> list[Any]:
    """Returns what so many runs give, after initialising."""
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        return [sess.run(fetches) for _ in range(times)]


@scenario("order.read_after_update")
def _(s: System) -> Record:
    """A read made behind an update sees what it wrote."""
    weight = s.Variable(1.0, name="weight")
    with s.control_dependencies([weight.assign_add(2.0)]):
        value = weight.read_value()
    return {"values": _run(s, value, times=3)}


@scenario("order.updates_one_behind_the_other")
def _(s: System) -> Record:
    """Updates that wait for one another are made in that order."""
    weight = s.Variable(1.0, name="weight")
    with s.control_dependencies([weight.assign_add(2.0)]):
        doubled = weight.assign(weight.read_value() * 10.0)
    with s.control_dependencies([doubled]):
        last = weight.assign_sub(1.0)
    with s.control_dependencies([last]):
        value = weight.read_value()
    return {"values": _run(s, value, times=2)}


@scenario("order.value_of_an_update")
def _(s: System) -> Record:
    """The value of an update is what it wrote."""
    weight = s.Variable([1.0, 2.0], name="weight")
    return {
        "add": _run(s, weight.assign_add([1.0, 1.0])),
        "sub": _run(s, weight.assign_sub([1.0, 1.0])),
        "assign": _run(s, weight.assign([5.0, 6.0])),
    }


@scenario("order.nested_blocks")
def _(s: System) -> Record:
    """Inner blocks add to what outer ones require; `None` clears them all."""
    calls: list[str] = []
    one = s.host(lambda: calls.append("one") or 1.0)
    two = s.host(lambda: calls.append("two") or 1.0)
    with s.control_dependencies([one]), s.control_dependencies([two]):
        both = s.no_op()
        with s.control_dependencies(None):
            free = s.no_op()
    with s.Session() as sess:
        sess.run(free)
        before = list(calls)
        sess.run(both)
    return {"before": before, "after": sorted(calls)}


@scenario("order.only_what_is_made_inside")
def _(s: System) -> Record:
    """What was made before a block does not wait for it."""
    calls: list[str] = []
    first = s.host(lambda: calls.append("first") or 1.0)
    outside = s.constant(1.0)
    with s.control_dependencies([first]):
        inside = s.group(outside)
    with s.Session() as sess:
        sess.run(outside)
        before = len(calls)
        sess.run(inside)
    return {"before": before, "after": len(calls)}


@scenario("order.names_and_variables")
def _(s: System) -> Record:
    """Operations, tensors and variables may be waited for; a single one without a list may not."""
    weight = s.Variable(1.0, name="weight")
    update = weight.assign_add(1.0)

    def block(given: Any) -> None:
        with s.control_dependencies(given):
            pass

    return {
        "kinds": [raised(block, [given]) for given in (weight, s.constant(1.0), s.no_op())],
        "alone": raised(block, s.no_op()),
        "number": raised(block, [3]),
        "update": raised(block, [update]),
    }


@scenario("order.group")
def _(s: System) -> Record:
    """A group runs all, and gives None."""
    a, b = s.Variable(1.0, name="a"), s.Variable(1.0, name="b")
    both = s.group(a.assign_add(1.0), b.assign_add(2.0))
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        return {"value": sess.run(both), "after": sess.run([a, b])}


@scenario("order.empty_group")
def _(s: System) -> Record:
    """A group of nothing is no operation."""
    return {"value": _run(s, [s.group(), s.no_op()])}


@scenario("order.only_what_is_needed_runs")
def _(s: System) -> Record:
    """What nobody asked for does not run."""
    calls: list[str] = []
    x = s.host(lambda: calls.append("x") or 1.0)
    y = s.host(lambda: calls.append("y") or 2.0)
    _unused = x + y
    return {"values": _run(s, y * 2.0), "calls": calls}


@scenario("order.shared_once")
def _(s: System) -> Record:
    """What two fetches share runs once, an update too."""
    weight = s.Variable(0.0, name="weight")
    update = weight.assign_add(1.0)
    return {"values": _run(s, [update, update * 2.0, s.group(update)], times=2)}


@scenario("order.initial_value_of_another")
def _(s: System) -> Record:
    """A variable may be initialised with the initial value of another."""
    one = s.Variable([1.0, 2.0], name="one")
    other = s.Variable(s.initial(one) * 3.0, name="other")
    return {"values": _run(s, [one, other])}


@scenario("order.initialisation_in_a_block")
def _(s: System) -> Record:
    """To initialise a variable that was made in a block does not run what the block names."""
    calls: list[str] = []
    first = s.host(lambda: calls.append("first") or 1.0)
    with s.control_dependencies([first]):
        weight = s.Variable(lambda: s.constant(2.0) if s.name == "tensorflow" else 2.0, name="weight")
    return {"values": _run(s, weight), "calls": len(calls)}


@scenario("order.initialise_again")
def _(s: System) -> Record:
    """To initialise again gives the initial values back."""
    weight = s.Variable(1.0, name="weight")
    more = weight.assign_add(1.0)
    init = s.global_variables_initializer()
    with s.Session() as sess:
        values = []
        for fetch in (init, more, more, init):
            sess.run(fetch)
            values.append(sess.run(weight))
    return {"values": values}


@scenario("order.some_initializers")
def _(s: System) -> Record:
    """Some variables may be initialised alone; the others are reported."""
    one = s.Variable(1.0, name="one")
    s.Variable(2.0, name="layer/other")
    init, missing = s.variables_initializer([one]), s.report_uninitialized_variables()
    with s.Session() as sess:
        before = sess.run(missing)
        sess.run(init)
        return {"before": sorted(before), "after": list(sess.run(missing))}


@scenario("order.int32_below_its_range")
def _(s: System) -> Record:
    """A 32-bit integer that is counted below its range."""
    count = s.Variable(-(2**31) + 1, name="count", dtype="int32")
    down = count.assign_sub(1)
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        first = int(sess.run(down))
        error = raised(sess.run, down)
        return {"first": first, "error": error, "after": int(sess.run(count))}
