"""Structures around fetches and feeds: classes with fields, and keys of several tensors."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import attrs
import equinox
import flax.struct
import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.testing import RecordingHook

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Metrics:
    loss: Any
    parts: Any
    total: Any = dataclasses.field(init=False)

    def __post_init__(self):
        self.total = self.loss + 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any


@attrs.define
class Slotted:
    x: Any
    y: Any = 0


@attrs.frozen
class FrozenAttrs:
    x: Any
    y: Any


class Module(equinox.Module):
    x: Any
    y: Any
    name: str = equinox.field(static=True)


@flax.struct.dataclass
class State:
    x: Any
    y: Any
    name: str = flax.struct.field(pytree_node=False)


@pytest.fixture(autouse=True)
def graph():
    with hl.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("kind", [Frozen, Slotted, FrozenAttrs])
def test_class_with_fields_is_returned_with_values(kind):
    fetches = kind(hl.constant(1.0), [hl.constant(2.0), {"z": hl.constant(3.0)}])
    with hl.Session() as sess:
        for _ in range(2):
            got = sess.run(fetches)
            assert type(got) is kind
            assert got == kind(1.0, [2.0, {"z": 3.0}])
    assert fetches.x.name == "Const:0", "what was fetched stays as it was"


def test_each_run_creates_its_own_object():
    count = hl.Variable(0, name="count", trainable=False)
    fetches = Frozen(count.assign_add(1), count)
    with hl.Session() as sess:
        sess.run(count.initializer)
        assert [sess.run(fetches) for _ in range(3)] == [Frozen(1, 0), Frozen(2, 1), Frozen(3, 2)]


def test_fields_without_an_init_argument_are_fetched():
    fetches = Metrics(hl.constant(1.0), Pair(hl.constant(2.0), hl.no_op()))
    with hl.Session() as sess:
        got = sess.run(fetches)
    assert (got.loss, got.parts, got.total) == (1.0, Pair(2.0, None), 2.0)


@pytest.mark.parametrize("kind", [Module, State])
def test_static_fields_are_kept_and_distinguish_structures(kind):
    x, y = hl.constant(1.0), hl.constant(2.0)
    with hl.Session() as sess:
        for name in ("one", "other", "one"):
            got = sess.run(kind(x, y, name))
            assert (type(got), got.x, got.y, got.name) == (kind, 1.0, 2.0, name)
        with pytest.raises(TypeError, match=r"'name' is static, and so must be hashable, but is of type list"):
            sess.run(kind(x, y, ["a"]))


def test_fields_must_be_fetchable():
    with hl.Session() as sess, pytest.raises(TypeError, match="3 cannot be fetched"):
        sess.run(Frozen(hl.constant(1.0), 3))


def test_hooks_may_fetch_classes_with_fields_and_be_wrapped_for_them():
    x, y = hl.constant(1.0, name="x"), hl.constant(2.0, name="y")
    hook = RecordingHook(fetches=Frozen(x, y))
    bound = RecordingHook()
    with train.MonitoredSession(hooks=[hook, train.only_for(Frozen(x, x), bound)]) as sess:
        assert sess.run(Slotted(x, y)) == Slotted(1.0, 2.0)
        sess.run(y)
    assert [event.given for event in hook.events if event.callback == "after_run"] == [Frozen(1.0, 2.0)] * 2
    assert [event.given for event in bound.events if event.callback == "after_run"] == [None], "y alone is another run"


def test_hook_with_a_foreign_tensor_in_a_field_is_named():
    with hl.Graph().as_default():
        stranger = hl.constant(1.0)
    hook = RecordingHook(fetches=Frozen(stranger, "x:0"))
    x = hl.constant(1.0, name="x")
    with train.MonitoredSession(hooks=[hook]) as sess, pytest.raises(ValueError, match="RecordingHook fetches"):
        sess.run(x)


# Feeds --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fed():
    return [hl.placeholder("float32", [], name=name) for name in "abc"]


def keys_and_values(a, b, c):
    return {
        "tuple": ((a, b, c), (1.0, 2.0, 3.0)),
        "list as value": ((a, b, c), [1.0, 2.0, 3.0]),
        "nested": ((a, (b, (c,))), (1.0, [2.0, (3.0,)])),
        "named tuple": (Pair(a, (b, c)), Pair(1.0, (2.0, 3.0))),
        "names": (("a:0", b, "c:0"), (1.0, 2.0, 3.0)),
        "frozen dataclass": (Frozen(a, (b, c)), Frozen(1.0, (2.0, 3.0))),
        "attrs": (FrozenAttrs(a, (b, c)), FrozenAttrs(1.0, (2.0, 3.0))),
    }


@pytest.mark.parametrize("form", keys_and_values(None, None, None))
def test_feed_key_of_several_tensors_takes_a_value_of_its_structure(fed, form):
    key, value = keys_and_values(*fed)[form]
    with hl.Session() as sess:
        assert sess.run(fed, {key: value}) == [1.0, 2.0, 3.0]
        assert sess.make_callable(fed, [key])(value) == [1.0, 2.0, 3.0]
        assert sess.backend.step_delta(fed, {key: value}) == 0


def test_feed_keys_of_several_tensors_may_be_mixed_with_others(fed):
    a, b, c = fed
    with hl.Session() as sess:
        assert sess.run(fed, {(a, c): (1.0, 3.0), b: 2.0}) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "given"),
    [((1.0, 2.0), r"2 parts \(0, 1\)"), ((1.0, 2.0, 3.0, 4.0), "4 parts"), (np.ones(3), "no structure")],
)
def test_value_of_another_structure_is_refused(fed, value, given):
    with hl.Session() as sess, pytest.raises(ValueError, match=rf"a key of 3 parts \(0, 1, 2\).*it has {given}"):
        sess.run(fed, {tuple(fed): value})


def test_tensor_fed_alone_and_in_a_structure_is_fed_twice(fed):
    a, b, _ = fed
    with hl.Session() as sess, pytest.raises(ValueError, match="'b:0' is fed twice"):
        sess.run(fed, {(a, b): (1.0, 2.0), b: 3.0})


def test_hooks_may_use_such_keys_and_conflicts_are_found(fed):
    a, b, c = fed
    hook = RecordingHook(feed_dict={(a, b): (1.0, 2.0)})
    with train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(2):
            assert sess.run(fed, {(c,): (3.0,)}) == [1.0, 2.0, 3.0]
        with pytest.raises(RuntimeError, match=r"a SessionRunHook and user. Conflict\(s\): b:0"):
            sess.run(fed, {(b, c): (3.0, 3.0)})
    other = RecordingHook(feed_dict={Pair(b, c): Pair(1.0, 2.0)})
    with train.MonitoredSession(hooks=[hook, other]) as sess, pytest.raises(RuntimeError, match=r"two hooks.*: b:0"):
        sess.run(fed)


# Callables ----------------------------------------------------------------------------------------------------------


def test_callable_takes_feed_values_in_order(fed):
    a, b, _ = fed
    with hl.Session() as sess:
        call = sess.make_callable({"difference": a - b, "nothing": hl.no_op()}, (a, "b:0"))
        assert call(5.0, 3.0) == {"difference": 2.0, "nothing": None}
        assert call(np.float32(1.0), 3) == {"difference": -2.0, "nothing": None}
        with pytest.raises(hl.errors.InvalidArgumentError, match="'a:0' has shape"):
            call([1.0, 2.0], 3.0)


def test_callable_reads_current_values_of_variables():
    step = train.get_or_create_global_step()
    with hl.Session() as sess:
        call = sess.make_callable(step.assign_add(1))  # Made before there is a value.
        with pytest.raises(hl.errors.FailedPreconditionError, match="global_step"):
            call()
        sess.run(step.initializer)
        assert [int(call()) for _ in range(3)] == [1, 2, 3]
        assert sess.global_step == 3


def test_callable_takes_as_many_values_as_keys(fed):
    with hl.Session() as sess:
        call = sess.make_callable(fed[0], fed[:1])
        for values in ((), (1.0, 2.0)):
            with pytest.raises(TypeError, match=rf"takes 1 values.*got {len(values)}"):
                call(*values)


def test_callable_takes_options_only_if_declared(fed):
    a, metadata = fed[0], hl.RunMetadata()
    doubled = hl.op(lambda x: 2 * x, name="doubled")(a)
    with hl.Session() as sess:
        call = sess.make_callable(a, [a], accept_options=True)
        options = hl.RunOptions(debug_tensor_watches=(doubled.name,))
        assert call(3.0, options=options, run_metadata=metadata) == 3.0
        assert metadata.watched == {"doubled:0": 6.0}
        with pytest.raises(TypeError, match="options"):
            sess.make_callable(a, [a])(3.0, options=options)


def test_invalid_callables_are_refused_at_creation(fed):
    a, b, _ = fed
    with hl.Session() as sess:
        with pytest.raises(TypeError, match=r"requires a list \(or None\) as feed_list"):
            sess.make_callable(a, a)
        with pytest.raises(TypeError, match="3 cannot be fetched"):
            sess.make_callable(3)
        with pytest.raises(ValueError, match="contains a tensor twice"):
            sess.make_callable(a, [a, (b, a)])
        with pytest.raises(hl.errors.InvalidArgumentError, match="must be fed for the placeholder 'b:0'"):
            sess.make_callable(a + b, [a])
        call = sess.make_callable(a, [a])
    with pytest.raises(RuntimeError, match="closed Session"):
        call(1.0)
    with pytest.raises(RuntimeError, match="closed Session"):
        sess.make_callable(a, [a])
