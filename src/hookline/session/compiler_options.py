"""XLA's compiler options for a program, on a CPU: for its memory, and for the same bits in a loop."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph import spec as specs
from hookline.graph.variable import Variable

_LARGE_BYTES = 32 * 2**20
_DISABLED = "xla_disable_hlo_passes"
_MEMORY_FIRST = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# XLA on CPU multiplies bfloat16 and float16 in float32. Merging equal expressions would make the float32 copy of each
# weight, made for the forward pass, live until the backward pass reads it: two copies of the model.
_HALVES_APART = {**_MEMORY_FIRST, _DISABLED: "cse"}
# Work that is the same in each step is computed in each, as in a single one: if it were moved out of the loop, XLA
# would fuse the rest differently, which changes the last bits of some models (of an attention over few places, say).
_NOTHING_MOVED_OUT = "while-loop-invariant-code-motion"


def compiler_options(variables: Sequence[Variable], *, in_loop: bool = False) -> dict[str, Any] | None:
    """Returns XLA's compiler options for a program; None for the defaults.

    On CPU, XLA's defaults keep intermediate copies of a large model alive: four of a bfloat16 model while it is
    initialised, two in a step. These options are no slower if every array is large. The order of the work changes no
    bits; not merging equal expressions of half precision may change the last bits.

    Args:
        variables: The variables that it writes, or that its caller reads.
        in_loop: Whether it makes several steps.
    """
    if jax.default_backend() != "cpu":
        return None
    leaves = [leaf for v in variables if v.spec is not specs.UNKNOWN for leaf in jax.tree.leaves(v.spec)]
    known = [leaf for leaf in leaves if all(isinstance(dim, int) for dim in leaf.shape)]
    options: dict[str, Any] = {}
    if _bytes(known) >= _LARGE_BYTES:
        halves = [leaf for leaf in known if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize == 2]
        options = _accepted(_HALVES_APART if _bytes(halves) >= _LARGE_BYTES else _MEMORY_FIRST)
    if in_loop:
        disabled = ",".join(filter(None, [options.get(_DISABLED), _NOTHING_MOVED_OUT]))
        options = _accepted(options | {_DISABLED: disabled}) or options
    return options or None


def _bytes(leaves: Sequence[Any]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _accepted(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options; none if this XLA does not know one of them, for then it refuses to compile."""
    return options if _is_accepted(tuple(options.items())) else {}


@functools.cache
def _is_accepted(options: tuple[tuple[str, Any], ...]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
