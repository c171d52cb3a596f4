"""A step that is made again and again leads where it led the first time, and where a run with options leads."""

from __future__ import annotations

import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import errors, train

LONG = hl.RunOptions()
"""With options, a run goes the long way."""


def model(*, fed: bool = False):
    """Returns the step of a model with dropout, and its feeds."""
    rng = np.random.default_rng(0)
    weights = hl.Variable(jnp.ones((4, 2)), name="weights")
    values = rng.normal(size=(8, 4)).astype("float32")
    x = hl.placeholder("float32", [None, 4], name="x") if fed else hl.constant(values)
    kept = hl.op(lambda x, key: x * jax.random.bernoulli(key, 0.5, x.shape))(x, hl.random_key(3))
    loss = hl.op(lambda x, w: ((x @ w - 1) ** 2).mean(), name="loss")(kept, weights)
    step = train.get_or_create_global_step()
    return train.Optimizer(optax.adam(1e-2)).minimize(loss, step), ({x: values} if fed else None)


@pytest.mark.parametrize("fed", [False, True])
def test_cached_and_plain_steps_give_the_same_values(fed):
    train_op, feed = model(fed=fed)
    found = []
    for options in (None, LONG):
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            for number in range(40):
                session.run(train_op, feed, options=options)
                if number == 20:
                    assert session.run("random_key/draws:0") == 21
            assert (session.global_step, session.run("random_key/draws:0")) == (40, 40)
            found.append(jax.tree.map(np.asarray, session.snapshot()))
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.parametrize("limits", [{5.0: 4}, {5.0: 4, 7.0: 6}])
def test_latches_and_a_callable_use_the_cached_step(limits):
    train_op, feed = model(fed=True)
    (x,) = feed
    latches = [hl.latch(hl.op(lambda x, limit=limit: x.max() > limit)(x)) for limit in limits]
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        step = session.make_callable(hl.group(train_op, *latches), [x])
        for value in (1.0, 2.0, 3.0, 6.0, 4.0, 8.0, 9.0):
            step(np.full((8, 4), value, "float32"))
        assert [session.latched(latch, wait=True) for latch in latches] == [*limits.values()]


def test_values_written_by_others_in_between_are_used():
    weights = hl.Variable(1.0, name="weights")
    step = train.get_or_create_global_step()
    doubled = hl.group(weights.assign(weights * 2), step.assign_add(1))
    tenfold = hl.group(weights.assign(weights * 10), step.assign_add(1))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for operation in (doubled, doubled, tenfold, tenfold, doubled, doubled):
            session.run(operation)
        assert session.run(weights) == 1600
        session.load({"weights": 3.0})
        session.run(doubled)
        session.run(weights.assign(7.0))
        session.run(doubled)
        session.run(doubled)
        assert (session.run(weights), session.global_step) == (28, 9)
        session.load({"global_step": 100})
        session.run(doubled)
        assert session.global_step == 101


def test_read_only_value_may_change():
    rate = hl.Variable(1.0, name="rate", trainable=False)
    total = hl.Variable(0.0, name="total")
    step = train.get_or_create_global_step()
    add = hl.group(total.assign_add(rate), step.assign_add(1))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for value in (1.0, 10.0, 100.0):
            session.load({"rate": value})
            for _ in range(3):
                session.run(add)
        assert session.run(total) == 333
        session.run(rate.assign(1000.0))
        session.run(add)
        assert session.run(total) == 1333


def test_other_feeds_are_used(caplog):
    caplog.set_level(logging.INFO, "hookline")
    train_op, feed = model(fed=True)
    (x,) = feed
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for size in (8, 8, 3, 8):
            session.run(train_op, {x: np.ones((size, 4), "float32")})
        with pytest.raises(errors.InvalidArgumentError, match="x:0"):
            session.run(train_op, {x: np.ones((8, 5), "float32")})
        with pytest.raises(errors.InvalidArgumentError, match="must be fed"):
            session.run(train_op)
        with pytest.raises(TypeError, match="feed_dict must be a dict"):
            session.run(train_op, [x])
        session.run(train_op, feed)
        assert session.global_step == 5
    assert sum("x:0 is" in line and "it was" in line for line in caplog.messages) == 1
    # The program, the initializer, and the other shape; each logs its duration.
    assert len([line for line in caplog.messages if line.startswith("Compiled it in")]) == 3


def test_closed_session_makes_no_step():
    train_op, _ = model()
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
    with pytest.raises(RuntimeError, match="closed"):
        session.run(train_op)


@pytest.mark.parametrize("runs", range(1, 8))
@pytest.mark.parametrize("watched", [False, True])
def test_session_whose_values_were_deleted_is_lost(runs, watched):
    train_op, _ = model()
    loss = hl.get_default_graph().get_tensor_by_name("loss:0")
    step = hl.group(train_op, hl.latch(hl.op(jnp.isnan)(loss))) if watched else train_op
    # Arrays of other tests, and of JAX itself.
    others = {id(array): array for array in jax.live_arrays()}
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=8)) as session:
        session.run(hl.global_variables_initializer())
        for _ in range(runs):
            session.run(step)
        for array in jax.live_arrays():
            if id(array) not in others:
                array.delete()
        for _ in range(2):
            with pytest.raises(errors.AbortedError, match="session is lost"):
                session.run(step)


def test_two_alternating_steps_are_both_cached():
    weights = hl.Variable(1.0, name="weights")
    others = hl.Variable(1.0, name="others")
    step = train.get_or_create_global_step()
    turns = [hl.group(v.assign(v * 2), step.assign_add(1)) for v in (weights, weights, others)]
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for number in range(40):
            session.run(turns[number % 2])
        for number in range(6):
            session.run(turns[number % 3])
        assert (session.run(weights), session.run(others), session.global_step) == (2.0**44, 4, 46)


def test_monitored_session_makes_no_step_with_a_closed_session():
    train_op, _ = model()
    session = train.MonitoredSession()
    for _ in range(5):
        session.run(train_op)
    session.raw_session().close()
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(train_op)
    with pytest.raises(RuntimeError, match="closed Session"):
        session.close()


def test_threads_make_each_step_once():
    step = train.get_or_create_global_step()
    total = hl.Variable(jnp.zeros(3), name="total")
    add = hl.group(total.assign_add(jnp.ones(3)), step.assign_add(1))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        waiter = threading.Thread(target=lambda: seen.append(session.wait_for_step(1200)), daemon=True)
        seen: list[int] = []
        waiter.start()
        threads = [threading.Thread(target=lambda: [session.run(add) for _ in range(300)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in (*threads, waiter):
            thread.join(30)
        assert seen == [1200]
        assert session.global_step == 1200
        assert (np.asarray(session.run(total)) == 1200).all()


def test_step_with_an_uninitialised_variable_names_it():
    total, missing = hl.Variable(0.0, name="total"), hl.Variable(1.0, name="missing")
    first, second = total.assign_add(1.0), total.assign_add(missing * 2)
    with hl.Session() as session:
        session.run(total.initializer)
        session.run(first)
        with pytest.raises(errors.FailedPreconditionError, match="'missing' has no value yet"):
            session.run(second)
        session.run(missing.initializer)
        session.run(second)
        assert session.run(total) == 3
