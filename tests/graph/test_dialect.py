"""A layer above may let the users of a graph see some things otherwise, through a dialect of the graph."""

from __future__ import annotations

import inspect
import logging

import jax
import jax.numpy as jnp
import pytest
from tests.stand_ins import Servers

import hookline as hl
from hookline import errors, train
from hookline.graph import Dialect, default_graph_of


class Shouted(hl.Tensor):
    def shout(self) -> str:
        return self.name.upper()

    def as_fed(self, value):
        return [2 * item for item in value]


class OwnSession(hl.Session):
    pass


class OwnMonitored(train.MonitoredSession):
    pass


class LoudDialect(Dialect):
    def class_for(self, kind):
        return {hl.Tensor: Shouted, hl.Session: OwnSession, train.MonitoredSession: OwnMonitored}.get(kind, kind)

    def returned(self, values):
        return [value.tolist() if isinstance(value, jax.Array) else value for value in values]


class Loud(hl.Graph):
    dialect = LoudDialect()


def speaking(dialect):
    graph = hl.Graph()
    graph.dialect = dialect
    return graph.as_default()


def test_what_a_graph_makes_is_of_the_classes_that_its_dialect_names():
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


def test_runs_take_and_return_what_the_dialect_makes_of_values():
    with Loud().as_default():
        x = hl.placeholder("float32", [2])
        pair = hl.op(lambda x: (x, x + 1))(x)
        with hl.Session() as sess:
            assert sess.run([x + 1, pair[0]], {x: [1.0, 2.0]}) == [[3.0, 5.0], [2.0, 4.0]]


def test_other_graphs_speak_as_the_core_does():
    with hl.Graph().as_default():
        assert type(hl.constant(1.0)) is hl.Tensor
        assert type(hl.Session()) is hl.Session
        assert type(train.MonitoredSession()) is train.MonitoredSession


def test_the_default_graph_becomes_one_of_a_kind_with_another_dialect():
    with hl.Graph().as_default() as plain:
        before = hl.constant(1.0)
        assert default_graph_of(Loud) is plain
        assert (before + 1.0).shout() == "ADD:0"
        assert default_graph_of(hl.Graph) is plain
    assert isinstance(plain, Loud)


def test_a_dialect_looks_at_each_run_once_it_has_been_made_and_may_raise():
    looked = []

    class Wary(Dialect):
        def check_run(self, graph):
            looked.append(graph)
            if len(looked) == 5:
                raise RuntimeError("enough")

    with speaking(Wary()) as graph:
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


def test_a_fed_number_is_compiled_in_where_the_dialect_says_that_the_program_needs_it(caplog):
    class Sized(Dialect):
        def is_compiled_in(self, op, computed):
            return op.name == "size" and any(other.name == "zeros" for other in computed)

    with speaking(Sized()):
        size = hl.placeholder("int32", name="size")
        zeros = hl.op(lambda size: jnp.zeros(size), name="zeros")(size)
        more = size + 1
        with hl.Session() as sess, caplog.at_level(logging.INFO, "hookline"):
            assert [sess.run(zeros, {size: number}).shape for number in (3, 2, 3)] == [(3,), (2,), (3,)]
            assert caplog.text.count("Compiling a program") == 2
            assert [sess.run(more, {size: number}) for number in (3, 2)] == [4, 3]
            assert caplog.text.count("Compiling a program") == 3


def test_a_step_that_is_repeated_compiles_fed_numbers_in():
    class Sized(Dialect):
        def is_compiled_in(self, op, computed):
            return op.name == "size"

    with speaking(Sized()):
        size = hl.placeholder("int32", name="size")
        total = hl.Variable(0.0)
        more = total.assign_add(hl.op(lambda size: jnp.ones(size).sum())(size))
        add = hl.group(more, train.create_global_step().assign_add(1))
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            for number in (3, 3, 3, 2):
                sess.run(add, {size: number})
            assert sess.run(total) == 11


def test_a_guard_that_the_dialect_lets_pass_does_not_hold_back_a_parameter_server():
    class Lenient(Dialect):
        def spares_remote(self, guard):
            return guard.name == "mine"

    with speaking(Lenient()):
        weight = hl.Variable(1.0, name="weight")
        add = weight.assign_add(1.0)
        mine, other = hl.skip_updates_if(weight > 0, name="mine"), hl.skip_updates_if(weight > 0, name="other")
        with hl.Session(Servers()) as sess:
            sess.run(hl.global_variables_initializer())
            sess.lowlevel.publish()
            sess.run((add.op, mine))
            with pytest.raises(errors.UnimplementedError, match="other.* cannot hold back"):
                sess.run((add.op, mine, other))
            assert sess.run(weight) == 2
