"""Byproducts of a function cannot change its main results: the two share only values behind barriers."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline.session.program.byproducts import (
    isolate_byproducts,  # Every kind of program: tests/session/test_bits.py has the session.
)

W = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), "v": jnp.linspace(0.5, 1.5, 4)}
X = jnp.linspace(-2.0, 2.0, 15).reshape(5, 3)


def apart(step):
    """Returns a step whose first result is the main one."""

    def whole(*given):
        n_main = len(jax.tree.leaves(given[0]))
        return isolate_byproducts(
            lambda: step(*given), lambda spec: [i < n_main for i in range(len(jax.tree.leaves(spec)))]
        )

    return whole


def loss_fn(params, x):
    hidden = jnp.tanh(x @ params["w"])
    return jnp.mean((hidden @ params["v"]) ** 2) + 0.1 * jnp.sum(params["w"] ** 2), hidden


def plain(params, x):
    (loss, hidden), grad = jax.value_and_grad(loss_fn, has_aux=True)(params, x)
    params = jax.tree.map(lambda p, s: p - 0.1 * s, params, grad)
    return params, {"loss": loss, "grad": grad, "hidden": hidden, "spread": jnp.std(hidden), "params": params}


def accumulated(params, x):
    def body(total, row):
        (loss, hidden), grad = jax.value_and_grad(loss_fn, has_aux=True)(params, row[None])
        return (jax.tree.map(jnp.add, total[0], grad), total[1] + loss), (hidden, grad["w"] * 2)

    begin = jax.tree.map(jnp.zeros_like, (params, 0.0))
    (grad, loss), (hidden, grads) = jax.lax.scan(body, begin, x)
    return jax.tree.map(lambda p, s: p - 0.1 * s, params, grad), {"loss": loss, "hidden": hidden, "grads": grads}


def in_while(params, x):
    def body(state):
        number, params, seen = state
        params, metrics = plain(params, x)
        return number + 1, params, seen + metrics["grad"]["w"]

    _, params, seen = jax.lax.while_loop(lambda s: s[0] < 3, body, (0, params, jnp.zeros_like(params["w"])))
    return params, {"seen": seen}


def in_branches(params, x):
    return jax.lax.cond(x[0, 0] < 0, plain, lambda p, x: plain(p, x * 2), params, x)


def in_shards(params, x):
    mesh = jax.make_mesh((1,), ("data",))
    shards = jax.shard_map(plain, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    return shards(params, x)


def rematerialized(params, x):
    (loss, hidden), grad = jax.value_and_grad(jax.checkpoint(loss_fn), has_aux=True)(params, x)
    return jax.tree.map(lambda p, s: p - 0.1 * s, params, grad), {"loss": loss, "hidden": hidden, "grad": grad}


def drawn(params, x):
    params, metrics = plain(params, x + jax.random.normal(jax.random.key(1), x.shape))
    jax.debug.callback(lambda loss: None, metrics["loss"])
    return params, {**metrics, "one": 1.0, "x": x, "steps": jnp.arange(3)}


STEPS = [plain, jax.jit(plain), accumulated, in_while, in_branches, in_shards, rematerialized, drawn]
named = pytest.mark.parametrize("step", STEPS, ids=lambda step: getattr(step, "__name__", "jitted"))


@named
def test_separated_byproducts_give_the_same_values(step):
    for one, other in zip(*(jax.tree.leaves(jax.jit(f)(W, X)) for f in (step, apart(step))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def needed(jaxpr, outvars):
    """Returns the equations that some outputs need, or that have an effect."""
    wanted, found = {v for v in outvars if not hasattr(v, "val")}, []
    for equation in reversed(jaxpr.eqns):
        if wanted & set(equation.outvars) or equation.effects:
            found.append(equation)
            wanted |= {v for v in equation.invars if not hasattr(v, "val")}
    return found


@pytest.mark.parametrize("step", [plain, rematerialized, drawn], ids=lambda step: step.__name__)
def test_other_readers_of_a_main_value_read_it_behind_two_barriers(step):
    jaxpr = jax.make_jaxpr(apart(step))(W, X).jaxpr
    n_main = len(jax.tree.leaves(W))
    main = needed(jaxpr, jaxpr.outvars[:n_main])
    made = {v: equation for equation in main for v in equation.outvars}
    others = [equation for equation in jaxpr.eqns if equation not in main]
    crossings = [(e, v) for e in others for v in e.invars if not hasattr(v, "val") and v in made]
    assert crossings
    for equation, value in crossings:
        assert equation.primitive is jax.lax.optimization_barrier_p
        source = made[value]
        assert source.primitive is jax.lax.optimization_barrier_p or not source.invars


@named
def test_unread_byproducts_cost_nothing(step):
    """The costly operations of a program that returns only the state are the same as the function's."""

    def counted(function):
        text = jax.jit(lambda *given: function(*given)[0]).lower(W, X).compile().as_text()
        return {name: len(re.findall(rf" {name}\(", text)) for name in ("dot", "tanh", "while", "conditional")}

    assert counted(apart(step)) == counted(step)


def test_value_shared_by_main_results_and_byproducts_is_computed_once():
    jaxpr = jax.make_jaxpr(apart(plain))(W, X)
    assert str(jaxpr).count("dot_general") == str(jax.make_jaxpr(plain)(W, X)).count("dot_general")


def test_product_is_still_written_transposed():
    def step(params, x):
        grad = jax.grad(lambda p: loss_fn(p, x)[0])(params)
        return jax.tree.map(lambda p, s: p - s, params, grad), grad

    text = jax.jit(apart(step)).lower(W, X).compile().as_text()
    before = jax.jit(step).lower(W, X).compile().as_text()
    assert text.count(" transpose(") <= before.count(" transpose(")


def test_error_of_the_function_is_raised_unchanged():
    with pytest.raises(ZeroDivisionError):
        jax.jit(apart(lambda w, x: (w, 1 / 0)))(W, X)
