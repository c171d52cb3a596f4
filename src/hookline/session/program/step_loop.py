"""Several steps in one program: a compiled loop whose count is given at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from hookline.errors import InvalidArgumentError
from hookline.graph.variable import Variable
from hookline.session.local_store import FlatValues

Groups = tuple[FlatValues, FlatValues, FlatValues]


def repeat_step(
    step: Callable[[Any, Groups, Any, Any], tuple[Groups, Any, Any, Any]],
    count: Any,
    max_steps: int,
    given: tuple[FlatValues, FlatValues],
    latch_values: Any,
    written: Sequence[Variable],
    warn: Callable[[str], None],
) -> tuple[Groups, Any, Any]:
    """Makes a step `count` times, each on the results of the one before.

    Args:
        step: A function of the step's number (from 0 on), the values of variables, the latches, and the previous values
            of last outputs, which are only wanted of the last step. It returns the new values, the outputs, the last
            outputs, and the latches.
        count: The number of steps; at least 1.
        max_steps: The largest number of steps, and the number of rows of each output. Rows after `count` are undefined.
            The last outputs follow the rows.
        given: The values of the variables, without write-only ones.
        latch_values: The values of the latches.
        written: The variables, in the order of the new values.
        warn: Logs a warning, once.

    Raises:
        InvalidArgumentError: A step changes the shape or dtype of a variable.
    """
    begin: Groups = (*given, ())
    # The first trace gets no last outputs: their types are not known yet.
    traced, found = jax.make_jaxpr(lambda: step(0, begin, latch_values, None), return_shape=True)()
    like, outputs, last, _ = found
    if jax.default_backend() == "cpu" and _contains_primitive(traced.jaxpr, "conv_general_dilated"):
        warn(
            "The step has convolutions, which XLA computes slowly in a loop on a CPU: several steps a run may take "
            "longer than single ones. Measure it, or leave out steps_per_run."
        )
    _check_same_specs(given, like, written)
    # Nothing reads these before the first step has written them.
    alone, left = jax.tree.map(zeros_like_spec, like[2]), jax.tree.map(zeros_like_spec, last)
    kept = jax.tree.map(lambda leaf: _stacked_zeros(max_steps, leaf), outputs)

    def body(number: Any, carry: Any) -> Any:
        groups, kept, left, latched = carry
        groups, outputs, left, latched = step(number, groups, latched, left)
        kept = jax.tree.map(lambda rows, row: rows.at[number].set(row), kept, outputs)
        return tuple(groups), kept, left, latched

    groups, kept, left, latch_values = counted_loop(count, max_steps, body, ((*given, alone), kept, left, latch_values))
    return groups, (*kept, *left), latch_values


def counted_loop(count: Any, max_count: int, body: Callable[[Any, Any], Any], begin: Any) -> Any:
    """Makes a compiled loop of `count` iterations, at most `max_count`, whose count is given at run time.

    On a GPU such a loop waits for the host after each iteration, which costs 12 to 500 µs on an H100. A loop of static
    length does not. So on a GPU as many iterations as possible are made in loops of static length.
    """
    if jax.default_backend() != "gpu":
        return jax.lax.fori_loop(0, count, body, begin)
    length = _inner_length(max_count)
    num_loops = count // length

    def several(number: Any, carry: Any) -> Any:
        return jax.lax.fori_loop(0, length, lambda index, carry: body(number * length + index, carry), carry)

    return jax.lax.fori_loop(num_loops * length, count, body, jax.lax.fori_loop(0, num_loops, several, begin))


def _inner_length(max_count: int) -> int:
    """Returns the length of the static loops: at most 16, with the fewest of `max_count` iterations left over."""
    return max_count if max_count <= 16 else min(range(16, 7, -1), key=lambda length: max_count % length)


def zeros_like_spec(like: Any) -> Any:
    """Returns zeros of a type, which may be a type of random keys; explicit axes are part of it."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jnp.zeros((), like.dtype), like.shape, out_sharding=like.sharding)
    return jnp.zeros(like.shape, like.dtype, out_sharding=like.sharding)


def _contains_primitive(jaxpr: Any, primitive: str) -> bool:
    return any(
        equation.primitive.name == primitive
        or any(_contains_primitive(inner, primitive) for inner in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )


def _stacked_zeros(count: int, like: Any) -> Any:
    sharding = like.sharding
    if sharding is not None:
        sharding = jax.NamedSharding(sharding.mesh, jax.P(None, *sharding.spec))
    return zeros_like_spec(jax.ShapeDtypeStruct((count, *like.shape), like.dtype, sharding=sharding))


def _check_same_specs(given: tuple[FlatValues, FlatValues], like: Groups, written: Sequence[Variable]) -> None:
    """Checks that a step does not change the shapes and dtypes of variables."""
    before, after = [*given[0], *given[1]], [*like[0], *like[1]]
    for variable, old, new in zip(written, before, after, strict=False):
        if [(a.shape, a.dtype) for a in old] != [(a.shape, a.dtype) for a in new]:
            raise InvalidArgumentError(
                variable.op.node_def,
                variable.op,
                f"Several steps in one run are not possible, because a step changes the shape or dtype of "
                f"{variable.op.name!r}. Leave out steps_per_run, or make the step keep them.",
            )
