from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitored.conftest import Scripted

import hookline as hl
from hookline.testing import FakeSession
from hookline.train import MonitoredSession, SessionRunHook, only_for

begun = []


class A(SessionRunHook):
    comes_after = ()

    def __init__(self, name="", **declared):
        self.name = name or type(self).__name__
        vars(self).update(declared)

    def begin(self):
        begun.append(self)

    def __repr__(self):
        return self.name


class B(A):
    pass


class C(A):
    pass


def in_order(hooks):
    """Returns the hooks as a session calls them."""
    begun.clear()
    with hl.Graph().as_default() as graph:
        hl.no_op(name="train")
        MonitoredSession(Scripted(FakeSession(graph=graph)), hooks).close()
    return begun.copy()


def names(hooks):
    return [repr(hook) for hook in hooks]


def test_hooks_without_a_declaration_keep_their_order():
    assert names(in_order([C(), A(), B(), A("a")])) == ["C", "A", "B", "a"]


def test_comes_after_waits_for_the_last_of_the_named_hooks():
    assert names(in_order([A("late", comes_after=B), C(), B(), C("c"), B("b"), C("cc")])) == [
        "C", "B", "c", "b", "late", "cc",
    ]  # fmt: skip


def test_comes_before_delays_the_named_hooks():
    assert names(in_order([B(), C(), A("early", comes_before=(B,)), B("b")])) == ["C", "early", "B", "b"]


def test_declaration_may_name_an_object_or_base_class_and_never_itself():
    one, other = B("one"), B("other")
    assert names(in_order([A("a", comes_after=[other]), one, other])) == ["one", "other", "a"]
    assert names(in_order([A("last", comes_after=SessionRunHook), one, other])) == ["one", "other", "last"]


def test_absent_hooks_are_ignored():
    assert names(in_order([A("a", comes_after=C, comes_before=B()), B()])) == ["a", "B"]


def test_wrapped_hook_keeps_its_declarations_and_is_found_by_its_class():
    bound, c, b = only_for("train", A("a", comes_after=B)), C(), B()
    assert in_order([bound, c, b]) == [c, b, bound.hook]
    assert names(in_order([A("x", comes_after=A("nobody")), only_for("train", B()).hook])) == ["x", "B"]
    last = A("last", comes_after=B)
    assert in_order([last, only_for("train", b)]) == [b, last]


@pytest.mark.parametrize(
    ("hooks", "complaint"),
    [
        (
            [A(comes_after=B), B(comes_after=A)],
            "the hook A must come after the hook B, which must come after the hook A",
        ),
        (
            [A(comes_after=B), B(comes_after=C), C(comes_after=(A, B))],
            "the hook A must come after the hook B, which must come after the hook C, which must come after the hook A",
        ),
        (
            [C(), A(comes_after=B, comes_before=B), B()],
            "the hook A must come after the hook B, which must come after the hook A",
        ),
        ([B(comes_after=B), B()], None),
        (
            [B(comes_after=B), B(comes_after=B)],
            "the hook B must come after the hook B, which must come after the hook B",
        ),
    ],
)
def test_contradictory_declarations_are_refused_by_name(hooks, complaint):
    if complaint is None:
        assert in_order(hooks) == hooks[::-1]
        return
    with pytest.raises(RuntimeError, match=complaint):
        in_order(hooks)


@pytest.mark.parametrize("wrong", ["B", None, 3])
def test_invalid_declaration_is_refused(wrong):
    with pytest.raises(
        TypeError, match=f"A must have a hook, a class or a tuple of them as comes_after, got {wrong!r}"
    ):
        in_order([A(comes_after=wrong)])


def test_session_calls_its_hooks_in_that_order(training, events, recorder):
    first, second = recorder("first"), recorder("second")
    first.comes_after = second
    with MonitoredSession(hooks=[first, second]) as session:
        session.run(training.train_op)
    assert events == [
        "second.begin", "first.begin", "second.created", "first.created", "second.before", "first.before",
        "second.after", "first.after", "second.end", "first.end",
    ]  # fmt: skip


def test_cycle_is_refused_before_anything_has_begun(training, events, recorder):
    first, second = recorder("first"), recorder("second")
    first.comes_after, second.comes_after = second, first
    with pytest.raises(RuntimeError, match="cannot be put in order"):
        MonitoredSession(hooks=[first, second])
    assert events == []
    assert not training.graph.finalized


def test_same_hook_plain_and_wrapped_is_a_duplicate(training, recorder):
    hook = recorder()
    with pytest.raises(RuntimeError, match="hook Recorder is listed twice"):
        MonitoredSession(hooks=[hook, only_for(training.train_op, hook)])


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_order_respects_every_declaration_and_moves_no_hook_needlessly(pairs):
    hooks = [A(str(i), comes_after=[]) for i in range(8)]
    for i, j in pairs:
        if j != i:
            hooks[i].comes_after.append(hooks[j])  # i after j
    try:
        order = in_order(hooks)
    except RuntimeError:
        assert _has_a_cycle({i: {j for k, j in pairs if k == i != j} for i in range(8)})
        return
    place = {hook.name: at for at, hook in enumerate(order)}
    assert sorted(place) == [str(i) for i in range(8)]
    assert all(place[str(j)] < place[str(i)] for i, j in pairs if i != j)
    if all(j <= i for i, j in pairs):
        assert order == hooks


def _has_a_cycle(after):
    left = set(after)
    while free := {i for i in left if not after[i] & left}:
        left -= free
    return bool(left)
