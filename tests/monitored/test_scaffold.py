from __future__ import annotations

import inspect

import pytest

from hookline import Graph, GraphKeys, Session, Variable, constant, group, no_op, summary
from hookline.train import ChiefSessionCreator, MonitoredSession, Saver, Scaffold

DEFAULTED = ["init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op", "saver"]
ARGUMENTS = [name for name in inspect.signature(Scaffold).parameters if name != "copy_from_scaffold"]
KEYS = [
    GraphKeys.INIT_OP,
    GraphKeys.READY_OP,
    GraphKeys.READY_FOR_LOCAL_INIT_OP,
    GraphKeys.LOCAL_INIT_OP,
    GraphKeys.SUMMARY_OP,
    GraphKeys.SAVERS,
]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def test_missing_arguments_are_none_before_finalize():
    scaffold = Scaffold()
    names = [*DEFAULTED, "init_feed_dict", "init_fn", "local_init_feed_dict"]
    assert [getattr(scaffold, name) for name in names] == [None] * len(names)


def test_finalize_creates_and_stores_the_defaults_and_finalizes_the_graph(graph):
    Variable(1.0, name="w")
    summary.scalar("loss", constant(2.0))
    scaffold = Scaffold().finalize()
    for name, key in zip(DEFAULTED, KEYS, strict=True):
        assert graph.get_collection(key) == [getattr(scaffold, name)]
    assert isinstance(scaffold.saver, Saver)
    assert graph.finalized


def test_defaults_initialise_everything_and_report_missing_values():
    Variable(1.0, name="w")
    Variable(2.0, name="local", collections=[GraphKeys.LOCAL_VARIABLES])
    scaffold = Scaffold().finalize()
    with Session() as session:
        assert list(session.run(scaffold.ready_op)) == ["w", "local"]
        assert list(session.run(scaffold.ready_for_local_init_op)) == ["w"]
        session.run(scaffold.init_op)
        assert list(session.run(scaffold.ready_op)) == ["local"]
        session.run(scaffold.local_init_op)
        assert list(session.run(scaffold.ready_op)) == []


def test_graph_without_summaries_has_no_summary_op(graph):
    assert Scaffold().finalize().summary_op is None
    assert graph.get_collection(GraphKeys.SUMMARY_OP) == []


def test_finalize_is_idempotent(graph):
    Variable(1.0, name="w")
    scaffold = Scaffold().finalize()
    version, init_op = graph.version, scaffold.init_op
    assert scaffold.finalize() is scaffold
    assert Scaffold().finalize().init_op is init_op
    assert graph.version == version


@pytest.mark.parametrize(("name", "key"), list(zip(DEFAULTED, KEYS, strict=True)))
def test_only_item_of_a_collection_is_used(graph, name, key):
    item = Saver() if name == "saver" else no_op(name="mine")
    graph.add_to_collection(key, item)
    assert getattr(Scaffold().finalize(), name) is item


@pytest.mark.parametrize(("name", "key"), list(zip(DEFAULTED, KEYS, strict=True)))
def test_several_items_in_a_collection_are_an_error_unless_one_is_given(graph, name, key):
    for _ in range(2):
        graph.add_to_collection(key, object())
    given = Saver() if name == "saver" else no_op()
    with pytest.raises(RuntimeError, match=rf"Collection '{key}' holds 2 items.*{name}="):
        Scaffold().finalize()
    assert getattr(Scaffold(**{name: given}).finalize(), name) is given


def test_defaults_of_an_earlier_session_are_replaced_for_added_variables(graph):
    Variable(1.0, name="w")
    first = Scaffold().finalize()
    graph.reopen()
    assert Scaffold().finalize().init_op is first.init_op
    graph.reopen()
    Variable(2.0, name="v")
    second = Scaffold().finalize()
    assert second.init_op is not first.init_op
    with Session() as session:
        session.run(second.init_op)
        assert list(session.run(second.ready_op)) == []


def test_users_item_in_a_collection_is_kept_when_variables_are_added(graph):
    mine = group(Variable(1.0, name="w").initializer)
    graph.add_to_collection(GraphKeys.INIT_OP, mine)
    Scaffold().finalize()
    graph.reopen()
    Variable(2.0, name="v")
    assert Scaffold().finalize().init_op is mine


def test_finalized_graph_without_the_defaults_is_an_error(graph):
    Variable(1.0, name="w")
    graph.finalize()
    with pytest.raises(RuntimeError, match="Graph is finalized"):
        Scaffold().finalize()


def test_init_fn_takes_the_scaffold_and_the_session():
    seen = []
    scaffold = Scaffold(init_fn=lambda *args: seen.append(args))
    scaffold.init_fn("session")  # type: ignore[misc,arg-type]
    assert seen == [(scaffold, "session")]


class EmptySaver(Saver):
    def __len__(self):
        return 0


def empty(argument):
    """A value for an argument that is unlike any other, and false: it must not count as missing."""
    value = EmptySaver() if argument == "saver" else {}
    return (lambda scaffold, session: value) if argument == "init_fn" else value


def held(scaffold, argument):
    value = getattr(scaffold, argument)
    return value.func if argument == "init_fn" else value


@pytest.mark.parametrize("own", [None, *ARGUMENTS])
def test_copy_takes_every_argument_not_given(own):
    given = {argument: empty(argument) for argument in ARGUMENTS}
    beside = {} if own is None else {own: empty(own)}
    copy = Scaffold(copy_from_scaffold=Scaffold(**given), **beside)
    expected = given | beside
    assert [argument for argument in ARGUMENTS if held(copy, argument) is not expected[argument]] == []


def test_copying_from_another_object_is_an_error():
    with pytest.raises(TypeError, match="Scaffold requires a Scaffold .* as copy_from_scaffold, got 3"):
        Scaffold(copy_from_scaffold=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEFAULTED)
def test_object_that_is_no_operation_or_saver_is_refused(name):
    with pytest.raises(TypeError, match=rf"Scaffold requires an? .* \(or None\) as {name}, got 3"):
        Scaffold(**{name: 3})


def test_invalid_feed_dict_or_function_is_refused():
    for name in ("init_feed_dict", "local_init_feed_dict"):
        with pytest.raises(TypeError, match=rf"Scaffold requires a Mapping \(or None\) as {name}, got 3"):
            Scaffold(**{name: 3})
    with pytest.raises(TypeError, match=r"Scaffold requires a function init_fn\(scaffold, session\)"):
        Scaffold(init_fn=3)  # type: ignore[arg-type]


def test_user_local_init_op_may_include_the_default():
    local = Variable(2.0, name="local", collections=[GraphKeys.LOCAL_VARIABLES])
    more = Variable(3.0, name="more", collections=[])
    scaffold = Scaffold(local_init_op=group(Scaffold.default_local_init_op(), more.initializer))
    with MonitoredSession(ChiefSessionCreator(scaffold)) as session:
        assert session.run([local, more]) == [2.0, 3.0]


def test_operations_may_be_given_by_name():
    weight = Variable(2.0, name="weight")
    group(weight.initializer, name="mine")
    no_op(name="nothing")
    scaffold = Scaffold(init_op="mine", local_init_op="nothing", summary_op="weight:0")
    with MonitoredSession(ChiefSessionCreator(scaffold)) as session:
        assert session.run(weight) == 2.0
