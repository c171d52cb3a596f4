"""A layer above may let the users of a graph see some things otherwise, through the front end of the graph."""

from __future__ import annotations

import contextlib
import inspect
import logging

import jax
import jax.numpy as jnp
import pytest
from tests.stand_ins import Servers

import hookline as hl
from hookline import errors, train
from hookline.extend import FrontEnd, Guard, require_default_graph


class Shouted(hl.Tensor):
    def shout(self) -> str:
        return self.name.upper()

    def convert_feed(self, value):
        return [2 * item for item in value]


class OwnSession(hl.Session):
    pass


class OwnMonitored(train.MonitoredSession):
    pass


class LoudFrontEnd(FrontEnd):
    def class_for(self, kind):
        return {hl.Tensor: Shouted, hl.Session: OwnSession, train.MonitoredSession: OwnMonitored}.get(kind, kind)

    def convert_results(self, values):
        return [value.tolist() if isinstance(value, jax.Array) else value for value in values]


class Loud(hl.Graph):
    front_end = LoudFrontEnd()


def graph_with(front_end):
    graph = hl.Graph()
    graph.front_end = front_end
    return graph.as_default()


def test_graph_creates_objects_of_its_front_ends_classes():
    with Loud().as_default() as graph:
        x = hl.placeholder("float32", [2], name="x")
        pair = hl.op(lambda x: (x, x + 1), name="pair")(x)
        with train.MonitoredSession() as monitored:
            assert type(monitored) is OwnMonitored
            assert type(monitored.raw_session()) is OwnSession

    assert x.shout() == "X:0"
    assert pair[1].shout() == "PAIR:0[1]"
    assert type(hl.Session(graph=graph)) is type(hl.Session("", graph)) is OwnSession
    assert list(inspect.signature(OwnSession).parameters) == ["target", "graph", "config"]


def test_front_end_converts_fed_and_fetched_values():
    with Loud().as_default():
        x = hl.placeholder("float32", [2])
        pair = hl.op(lambda x: (x, x + 1))(x)
        with hl.Session() as sess:
            assert sess.run([x + 1, pair[0]], {x: [1.0, 2.0]}) == [[3.0, 5.0], [2.0, 4.0]]


def test_other_graphs_have_the_default_front_end():
    with hl.Graph().as_default():
        assert type(hl.constant(1.0)) is hl.Tensor
        assert type(hl.Session()) is hl.Session
        assert type(train.MonitoredSession()) is train.MonitoredSession


def test_empty_default_graph_takes_the_requested_class():
    hl.reset_default_graph()
    try:
        found = require_default_graph(Loud)
        assert type(found) is Loud
        assert require_default_graph(Loud) is require_default_graph(hl.Graph) is hl.get_default_graph() is found
        assert hl.constant(1.0).shout() == "CONST:0"
    finally:
        hl.reset_default_graph()


@pytest.mark.parametrize(
    "entered",
    [contextlib.nullcontext, lambda: hl.Graph().as_default(), lambda: hl.get_default_graph().as_default()],
    ids=["not empty", "another", "its own, entered"],
)
def test_graph_in_use_keeps_its_class(entered):
    hl.reset_default_graph()
    try:
        with entered():
            if entered is contextlib.nullcontext:
                hl.constant(1.0)
            with pytest.raises(TypeError, match=r"must be a .*Loud, and is a hookline\..*Graph: build inside"):
                require_default_graph(Loud)
    finally:
        hl.reset_default_graph()


def test_front_end_checks_each_new_plan_and_may_raise():
    looked = []

    class Wary(FrontEnd):
        def check_run(self, graph):
            looked.append(graph)
            if len(looked) == 5:
                raise RuntimeError("enough")

    with graph_with(Wary()) as graph:
        count = hl.Variable(0.0)
        add = hl.group(count.assign_add(1.0), train.create_global_step().assign_add(1))
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            for _ in range(3):
                sess.run(add)
            with pytest.raises(RuntimeError, match="enough"):
                sess.run(add)
            assert sess.run(count) == 4
    assert looked == [graph] * 6


def test_fed_number_is_static_where_the_front_end_requires_it(caplog):
    class Sized(FrontEnd):
        def is_static(self, op, computed):
            return op.name == "size" and any(other.name == "zeros" for other in computed)

    with graph_with(Sized()):
        size = hl.placeholder("int32", name="size")
        zeros = hl.op(lambda size: jnp.zeros(size), name="zeros")(size)
        more = size + 1
        with hl.Session() as sess, caplog.at_level(logging.INFO, "hookline"):
            assert [sess.run(zeros, {size: number}).shape for number in (3, 2, 3)] == [(3,), (2,), (3,)]
            assert caplog.text.count("Compiling a program") == 2
            assert [sess.run(more, {size: number}) for number in (3, 2)] == [4, 3]
            assert caplog.text.count("Compiling a program") == 3


def test_repeated_step_treats_fed_numbers_as_static():
    class Sized(FrontEnd):
        def is_static(self, op, computed):
            return op.name == "size"

    with graph_with(Sized()):
        size = hl.placeholder("int32", name="size")
        total = hl.Variable(0.0)
        more = total.assign_add(hl.op(lambda size: jnp.ones(size).sum())(size))
        add = hl.group(more, train.create_global_step().assign_add(1))
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            for number in (3, 3, 3, 2):
                sess.run(add, {size: number})
            assert sess.run(total) == 11


def test_guard_without_remote_updates_runs_with_a_server_update():
    class Mine(Guard):
        forbids_remote_updates = False

    with hl.Graph().as_default():
        weight = hl.Variable(1.0, name="weight")
        add = weight.assign_add(1.0)
        mine, other = Mine(weight > 0, "mine"), hl.skip_updates_if(weight > 0, name="other")
        with hl.Session(Servers()) as sess:
            sess.run(hl.global_variables_initializer())
            sess.backend.publish()
            sess.run((add.op, mine))
            with pytest.raises(errors.UnimplementedError, match="other.* cannot skip"):
                sess.run((add.op, mine, other))
            assert sess.run(weight) == 2
