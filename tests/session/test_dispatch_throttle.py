"""How far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import hookline as hl

SOME = [(2, None), (8, 3)]


def slow(value):
    """Takes the device some milliseconds: much longer than the host takes to start it."""
    return jax.lax.fori_loop(0, 10, lambda _, x: x @ x / 300, value)


def most_ahead(run: Callable[[], list[jax.Array]], bound: int) -> int:
    """Returns how many runs were not computed yet, at most, when one of them had been started.

    They are more than twice as many as the bound: it is reached, and holds from there on.

    Each run takes what the one before has left. So where one of its results is there, it is computed, and so are all
    runs before, even if other results still wait for a thread to mark them as ready.
    """
    results, done, most = [], 0, 0
    for _ in range(2 * bound + 10):
        results.append(run())
        computed = (number for number, arrays in enumerate(results, 1) if any(array.is_ready() for array in arrays))
        done = max(computed, default=done)
        most = max(most, len(results) - done)
    jax.block_until_ready(results)
    return most


@pytest.mark.parametrize("bound", [2, 3, 8, 28])
def test_host_runs_ahead_up_to_the_bound(bound):
    weights = hl.Variable(jnp.ones((300, 300)), name="weights")
    new = weights.assign(hl.op(slow)(weights))
    train_op = hl.op(jnp.sum)(new)
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=bound)) as session:
        session.run(hl.global_variables_initializer())
        session.run(train_op)
        assert bound // 2 <= most_ahead(lambda: [session.run(train_op)], bound) <= bound


@pytest.mark.parametrize(
    ("bound", "others"),
    [
        pytest.param(bound, others, marks=() if (bound, others) in SOME else pytest.mark.campaign)
        for bound in (2, 3, 8, 28)
        for others in (None, 1, 3, 5, 15)
    ],
)
def test_bound_holds_when_a_fast_device_becomes_slow(bound, others):
    weights = hl.Variable(jnp.ones((300, 300)), name="weights")
    times = hl.placeholder("int32", [], name="times")
    step = hl.train.get_or_create_global_step()
    loops = hl.op(lambda times, step: times + 0 * step)(times, step)
    work = hl.op(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: x @ x / 300, x))(weights, loops)
    train_op = hl.group(weights.assign(work), step.assign_add(1))
    total = hl.op(jnp.sum)(work)
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=bound)) as session:
        session.run(hl.global_variables_initializer())

        def run(count):
            is_other = others is not None and session.global_step % others == 0
            fetched = session.run([train_op, total] if is_other else train_op, {times: jnp.int32(count)})
            # The program reads the global step, so no run takes it away.
            count = session.backend.store.read_leaves([step])[0][0]
            return [count, fetched[1]] if is_other else [count]

        for _ in range(2):
            for _ in range(bound + 3):
                jax.block_until_ready(run(0))
            assert bound // 2 <= most_ahead(lambda: run(20), bound) <= bound


@pytest.mark.parametrize(
    ("bound", "steps", "most"),
    [
        (2, 4, 1),
        (28, 16, 4),
        *[pytest.param(*case, marks=pytest.mark.campaign) for case in ((8, 4, 4), (28, 3, 10), (28, 64, 4))],
    ],
)
def test_several_steps_in_a_run_count_up_to_a_quarter_of_the_bound(bound, steps, most):
    """So that a few runs wait behind the one that is computed, however many steps each has."""
    weights = hl.Variable(jnp.ones((200, 200)), name="weights")
    step = hl.train.get_or_create_global_step()
    new = weights.assign(hl.op(slow)(weights))
    train_op = hl.group(new, step.assign_add(1))
    total = hl.op(jnp.sum)(new)
    config = hl.SessionConfig(max_runs_ahead=bound)
    creator = hl.train.ChiefSessionCreator(config=config)
    with hl.train.MonitoredSession(creator, steps_per_run=steps) as session:
        raw = session.raw_session()
        fetches = [train_op, total]
        repeated = raw.backend.cached_step(fetches, None, steps)
        jax.block_until_ready(repeated.run())
        assert most // 2 < most_ahead(lambda: [repeated.run()[0][1]], most) <= most
        assert raw.global_step % steps == 0


def test_throttle_polls_random_keys():
    keys = hl.Variable(lambda: jax.random.key(1), name="keys")
    step = hl.train.get_or_create_global_step()
    split = hl.op(lambda key: jax.random.split(key)[0])(keys)
    train_op = hl.group(keys.assign(split), step.assign_add(1))
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=4)) as session:
        session.run(hl.global_variables_initializer())
        for _ in range(10):
            session.run(train_op)
            session.run(keys)
            session.run(hl.get_default_graph().get_tensor_by_name(split.name))
        assert session.global_step == 10


def test_jax_does_not_block_the_host_below_the_default_bound():
    compiled, value = jax.jit(slow), jnp.ones((300, 300))
    compiled(value)

    def run():
        nonlocal value
        value = compiled(value)
        return [value]

    # Two more are copies of a small variable, which the session starts itself.
    bound = hl.SessionConfig().max_runs_ahead
    assert most_ahead(run, bound) >= bound + 2
