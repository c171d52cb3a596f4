"""Operations of the graph are name scopes of the compiled program: profilers and XLA's texts show their names."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import train


def scopes(text: str) -> set[str]:
    """Returns the first parts of the names of a program's instructions, after the program itself."""
    return {name.split("/")[1] for name in re.findall(r'op_name="([^"]*)"', text) if "/" in name}


@pytest.fixture
def model() -> tuple[Any, Any, Any]:
    """A small network: its input, its loss and its training operation."""
    rng = np.random.default_rng(7)
    x = hl.placeholder(jnp.float32, [32, 8], name="x")
    with hl.name_scope("layer"):
        weights = hl.Variable(rng.normal(size=(8, 4)).astype(np.float32), name="w")
        hidden = hl.op(lambda x, w: jnp.tanh(x @ w), name="hidden")(x, weights)
    loss = hl.op(lambda h: jnp.mean((h - 0.5) ** 2), name="loss")(hidden)
    step = train.get_or_create_global_step()
    return x, loss, train.Optimizer(optax.adam(1e-2)).minimize(loss, global_step=step)


def test_operation_names_are_in_the_compiled_program(model):
    x, loss, train_op = model
    metadata = hl.RunMetadata()
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        sess.run([loss, train_op], {x: np.ones((32, 8))}, hl.RunOptions(output_partition_graphs=True), metadata)
    (text,) = metadata.partition_graphs
    assert scopes(text) == {"layer", "loss", "gradients", "optimizer"}
    assert 'op_name="jit(_trace)/layer/hidden/' in text
    assert 'op_name="jit(_trace)/optimizer/layer/w/apply/' in text


def test_names_do_not_change_a_bit_and_are_added_once(model, monkeypatch):
    x, loss, train_op = model
    first, *others = np.random.default_rng(3).normal(size=(40, 32, 8)).astype(np.float32)
    named = []

    def trained() -> Any:
        named.clear()
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            losses = [sess.run([loss, train_op], {x: first})[0]]
            named_at_first = len(named)
            losses += [sess.run([loss, train_op], {x: batch})[0] for batch in others]
            assert len(named) == named_at_first
            return np.array(losses), sess.snapshot()

    scope = jax.named_scope
    monkeypatch.setattr(jax, "named_scope", lambda name: named.append(name) or scope(name))
    with_names = trained()
    assert (named.count("loss"), named.count("gradients")) == (1, 1)
    monkeypatch.setattr(jax, "named_scope", lambda name: contextlib.nullcontext())
    without = trained()
    jax.tree.map(np.testing.assert_array_equal, with_names, without)
