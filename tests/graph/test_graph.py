"""Graphs: names, scopes, collections, lookup, finalisation, default graphs."""

from __future__ import annotations

import threading

import pytest

import hookline as hl


def test_names_are_unique_and_carry_their_scopes():
    graph = hl.Graph()
    with graph.as_default(), hl.name_scope("layer"):
        first = hl.constant(1.0, name="x")
        second = hl.constant(1.0, name="x")
        with hl.name_scope("layer"):
            inner = hl.constant(1.0, name="x")
        with hl.name_scope(None):
            outer = hl.constant(1.0, name="x")
    with graph.as_default(), hl.name_scope("layer") as again:
        third = hl.constant(1.0, name="x")
        with hl.name_scope("layer/"):
            reentered = hl.constant(1.0, name="y")

    names = [tensor.op.name for tensor in (first, second, inner, outer, third, reentered)]
    assert names == ["layer/x", "layer/x_1", "layer/layer/x", "x", "layer_1/x", "layer/y"]
    assert again == "layer_1/"


def test_numbered_name_in_use_is_skipped():
    names = [hl.constant(0.0, name=name).op.name for name in ("a_1", "a", "a", "a_1", "a")]
    assert len(set(names)) == len(names)


def test_a_name_with_a_space_is_refused():
    with pytest.raises(ValueError, match="'my loss' is not a name"):
        hl.constant(0.0, name="my loss")


def test_operations_and_tensors_are_found_by_name():
    loss = hl.constant(1.0, name="loss")
    graph = hl.get_default_graph()

    assert graph.get_operation_by_name("loss") is loss.op
    assert graph.get_tensor_by_name("loss:0") is loss
    assert graph.as_graph_element("loss") is loss.op
    assert graph.as_graph_element("loss:0") is loss
    with pytest.raises(KeyError, match=r"no operation 'los'. Did you mean 'loss'"):
        graph.as_graph_element("los:0")
    with pytest.raises(ValueError, match="'loss' is not the name of a tensor: write 'loss:0'"):
        graph.get_tensor_by_name("loss")
    with pytest.raises(ValueError, match="is not the name of a tensor: write 'loss:0'"):
        graph.get_tensor_by_name("loss:1")


def test_collections_hold_added_values_and_return_copies():
    graph = hl.Graph()
    with graph.as_default():
        weight = hl.Variable(1.0, name="layer/weight")
        local = hl.Variable(1.0, name="local", trainable=False, collections=[hl.GraphKeys.LOCAL_VARIABLES])
        hl.add_to_collection("mine", 3)

        assert hl.get_collection("mine") == [3]
        assert hl.global_variables() == [weight]
        assert hl.trainable_variables() == [weight]
        assert hl.local_variables() == [local]
        assert hl.get_collection(hl.GraphKeys.GLOBAL_VARIABLES, scope="layer") == [weight]
        assert hl.get_collection(hl.GraphKeys.GLOBAL_VARIABLES, scope="other") == []
    graph.get_collection("mine").append(4)
    assert graph.get_collection("mine") == [3]
    graph.get_collection_ref("mine").append(4)
    graph.get_collection_ref("empty")
    assert {"mine", "empty"} & {*graph.get_all_collection_keys()} == {"mine"}
    assert graph.get_collection("mine") == [3, 4]


@pytest.mark.parametrize(
    "add",
    [
        lambda: hl.constant(1.0),
        lambda: hl.placeholder("float32"),
        lambda: hl.Variable(1.0),
        lambda: hl.no_op(),
        lambda: hl.add_to_collection("a", 1),
        lambda: hl.global_variables_initializer(),
        lambda: hl.train.get_or_create_global_step(),
        lambda: hl.get_default_graph().get_tensor_by_name("x:0") + 1.0,
    ],
)
def test_a_finalized_graph_refuses_every_addition(add):
    graph = hl.Graph()
    with graph.as_default():
        hl.constant(1.0, name="x")
        graph.finalize()
        graph.finalize()
        before = graph.as_text()
        with pytest.raises(RuntimeError, match=r"^Graph is finalized and cannot be modified\. .*'.+' was to be added"):
            add()
        assert graph.as_text() == before
        graph.reopen()
        add()


def test_each_thread_has_its_own_default_graphs():
    seen = {}

    def work():
        seen["own"] = hl.get_default_graph()
        with hl.Graph().as_default() as inner:
            seen["inner"] = hl.constant(1.0).graph is inner

    with hl.Graph().as_default() as outer:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert hl.get_default_graph() is outer
        assert seen["own"] is not outer
        assert seen["inner"]
        with pytest.raises(RuntimeError, match="must not be called inside"):
            hl.reset_default_graph()


def test_mixing_two_graphs_names_the_foreign_tensor():
    with hl.Graph().as_default():
        foreign = hl.constant(1.0, name="foreign")
    with pytest.raises(ValueError, match="its argument 'foreign:0' belongs to another graph"):
        foreign + 1.0
    with pytest.raises(ValueError, match="'foreign:0' belongs to another graph"), hl.control_dependencies([foreign]):
        pass


def test_control_dependencies_nest_and_can_be_cleared():
    a, b = hl.no_op("a"), hl.no_op("b")
    with hl.control_dependencies([a]):
        with hl.control_dependencies([b]):
            both = hl.no_op()
        with hl.control_dependencies(None):
            free = hl.no_op()
    assert both.control_inputs == (a, b)
    assert free.control_inputs == ()


def test_listing_shows_names_types_and_inputs():
    hl.op(lambda x: x * 2, name="twice")(hl.placeholder("float32", [None, 3], name="x"))
    listing = hl.get_default_graph().as_text()
    assert "x = Placeholder() : float32[?,3]" in listing
    assert "twice = op(x:0) : float32[?,3]" in listing


def test_an_operation_may_have_the_name_of_a_scope():
    with hl.Graph().as_default() as graph, hl.name_scope("tower") as scope:
        first = hl.constant(1.0, name=scope)
        second = hl.constant(2.0, name=scope)

    assert [first.op.name, second.op.name] == ["tower", "tower/tower"]
    assert graph.get_tensor_by_name("tower:0") is first
