"""A layer above may give a graph's nodes, tensors, variables and sessions further methods."""

from __future__ import annotations

import hookline as hl
from hookline.graph import default_graph_of


class Shouted(hl.Tensor):
    def shout(self) -> str:
        return self.name.upper()

    def as_fed(self, value):
        return [2 * item for item in value]


class OfLists(hl.Session):
    def returned(self, values):
        return [value.tolist() for value in values]


class Loud(hl.Graph):
    def class_of(self, kind):
        return {hl.Tensor: Shouted, hl.Session: OfLists}.get(kind, kind)


def test_what_a_graph_makes_is_of_the_classes_that_it_names():
    with Loud().as_default():
        x = hl.placeholder("float32", [2], name="x")
        pair = hl.op(lambda x: (x, x + 1), name="pair")(x)
        with hl.Session() as sess:
            assert sess.run([x + 1, pair[0]], {x: [1.0, 2.0]}) == [[3.0, 5.0], [2.0, 4.0]]

    assert x.shout() == "X:0"
    assert pair[1].shout() == "PAIR:0[1]"
    assert isinstance(sess, OfLists)


def test_other_graphs_have_the_classes_of_the_core():
    with hl.Graph().as_default():
        assert type(hl.constant(1.0)) is hl.Tensor
        assert type(hl.Session()) is hl.Session


def test_the_default_graph_becomes_one_of_a_kind_with_more_methods():
    with hl.Graph().as_default() as plain:
        before = hl.constant(1.0)
        assert default_graph_of(Loud) is plain
        assert (before + 1.0).shout() == "ADD:0"
        assert default_graph_of(hl.Graph) is plain
    assert isinstance(plain, Loud)
