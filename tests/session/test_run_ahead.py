"""How far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import hookline as hl
from hookline.session import latches

RUNS = 80


def slow(value):
    """Takes the device some milliseconds: much longer than the host takes to start it."""
    return jax.lax.fori_loop(0, 10, lambda _, x: x @ x / 300, value)


def most_ahead(run: Callable[[], jax.Array]) -> int:
    """Returns of how many runs the results were not there yet, at most, when one of them had been started."""
    results, most = [], 0
    for _ in range(RUNS):
        results.append(run())
        most = max(most, sum(not result.is_ready() for result in results))
    jax.block_until_ready(results)
    return most


@pytest.mark.parametrize("bound", [2, 3, 8, 28])
def test_the_host_runs_ahead_to_the_bound_and_no_further(bound):
    weights = hl.Variable(jnp.ones((300, 300)), name="weights")
    new = weights.assign(hl.op(slow)(weights))
    train_op = hl.op(jnp.sum)(new)
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=bound)) as session:
        session.run(hl.global_variables_initializer())
        session.run(train_op)
        assert bound // 2 <= most_ahead(lambda: session.run(train_op)) <= bound


def test_jax_does_not_make_the_host_wait_below_the_default_bound():
    compiled, value = jax.jit(slow), jnp.ones((300, 300))
    compiled(value)

    def run():
        nonlocal value
        value = compiled(value)
        return value

    # Two more are copies of a latch, which the session starts itself.
    assert most_ahead(run) >= hl.SessionConfig().max_runs_ahead + 2


def test_each_look_copies_a_latch_once(monkeypatch):
    copies = []
    copied = latches.copied
    monkeypatch.setattr(latches, "copied", lambda value: copies.append(value) or copied(value))
    weights = hl.Variable(jnp.ones((300, 300)), name="weights")
    new = weights.assign(hl.op(slow)(weights))
    train_op = hl.group(new.op, hl.latch(hl.op(jnp.max)(new) > 1e9))
    with hl.Session(config=hl.SessionConfig(max_runs_ahead=8)) as session:
        session.run(hl.global_variables_initializer())
        for _ in range(40):
            session.run(train_op)
    assert 5 <= len(copies) <= 10
