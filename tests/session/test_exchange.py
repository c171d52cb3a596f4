"""A program's outputs are its next run's inputs, without a visible difference."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import errors


def large_arrays():
    gc.collect()
    return sum(array.nbytes == 4_000_000 for array in jax.live_arrays())


def test_replaced_values_are_freed():
    before = large_arrays()
    ones = np.ones(1_000_000, "float32")
    weights = hl.Variable(hl.op(lambda: jnp.zeros(1_000_000, jnp.float32))(), name="weights")
    fed = hl.placeholder("float32", [1_000_000], name="fed")
    add, fill = weights.assign_add(hl.constant(1.0)).op, weights.assign(fed * 2).op
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(add)
        for _ in range(2):
            session.load({"weights": ones})
            assert large_arrays() - before <= 2, "the variable, and what the constant of the initial value holds"
            session.run(add)
        held = large_arrays()
        for _ in range(3):
            session.run(fill, {fed: ones})
            assert large_arrays() <= held
        np.testing.assert_array_equal(session.run(weights), 2 * ones)


def test_refused_trace_leaves_a_readable_session():
    step = hl.train.get_or_create_global_step()
    x = hl.placeholder("float32", name="x")
    loss = hl.op(lambda value: value.sum())(x)
    kept = hl.Variable(np.zeros(2, "float32"), name="kept")
    loose = hl.Variable(hl.host_op(lambda: np.zeros(2, "float32"))(), name="loose")
    with hl.control_dependencies([loose.assign(x)]):
        train_op = step.assign_add(1)
    good = np.ones(2, "float32")
    with hl.train.MonitoredSession(hooks=[hl.train.NanTensorHook(loss, on_nan="skip")]) as session:
        session.run(train_op, {x: good})
        with pytest.raises(errors.InvalidArgumentError, match="cannot skip an update"):
            session.run(train_op, {x: np.ones(3, "float32")})
        session.run(train_op, {x: good})
        found = session.raw_session().snapshot()
    assert found["global_step"] == 2
    np.testing.assert_array_equal(found["loose"], good)
    np.testing.assert_array_equal(found["kept"], [0, 0])
    assert kept.op.name in found


def test_lost_session_calls_no_host_operation():
    def explode(value):
        raise RuntimeError("boom")

    variable = hl.Variable(1.0, name="variable")
    like = jax.ShapeDtypeStruct((), jnp.float32)
    bad = hl.update(variable, lambda old: old + jax.pure_callback(explode, like, old))
    taken = []
    batch = hl.host_op(lambda: (taken.append(1), np.float32(1))[1], spec=like)()
    use = hl.op(lambda value: value * 2)(batch)
    session = hl.Session()
    session.run(hl.global_variables_initializer())
    session.run(use)
    with pytest.raises((errors.AbortedError, jax.errors.JaxRuntimeError)):  # noqa: PT012
        session.run([bad.op])
        float(session.run([variable])[0])
    count = len(taken)
    for _ in range(3):
        with pytest.raises(errors.AbortedError):
            session.run(use)
    assert len(taken) == count


def test_variable_keeps_its_current_keys_regardless_of_earlier_compilations():
    kept = hl.Variable(hl.host_op(lambda: {"a": np.zeros(2, np.float32)})(), name="kept")
    counted = hl.update(kept, lambda value: jax.tree.map(lambda leaf: leaf + 1, value))
    renamed = hl.update(kept, lambda value: {"b": next(iter(value.values()))})
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        seen = []
        for update in (counted, renamed, counted):
            session.run(update.op)
            seen.append(session.snapshot()["kept"])
        session.load({"kept": {"c": np.zeros(2, np.float32)}})
        session.run(counted.op)
        seen.append(session.snapshot()["kept"])
    assert [{key: value.tolist() for key, value in each.items()} for each in seen] == [
        {"a": [1, 1]},
        {"b": [1, 1]},
        {"b": [2, 2]},
        {"c": [1, 1]},
    ]
