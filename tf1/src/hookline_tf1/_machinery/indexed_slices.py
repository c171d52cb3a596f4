"""Gradients of embedding tables, whose rows a loss looks up.

TensorFlow keeps such a gradient as rows and their indices (`IndexedSlices`); here it is an array, zero elsewhere. With
`IndexedSlices`, most optimizers leave the other rows and their slots unchanged, and a norm counts a row once for each
lookup. This module gives scripts the same results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from hookline import Tensor, gradients
from hookline.extend import Function, Gradient

_LOOKUPS = ("GatherV2", "embedding_lookup")
_CLIPPED = ("_clipped",)


class Lookups(NamedTuple):
    """The lookups through which a loss depends on a variable's rows.

    Attributes:
        ys: The differentiated tensors.
        rows: The tensors of the looked-up rows.
    """

    ys: list[Tensor]
    rows: list[Tensor]


def lookups(gradient: Any) -> Lookups | None:
    """Finds the lookups behind a gradient; None if the loss also uses the variable in another way."""
    while isinstance(gradient, Tensor) and gradient.op.type in _CLIPPED:
        gradient = gradient.op.inputs[0]
    node = gradient.op if isinstance(gradient, Tensor) else None
    if not isinstance(node, Gradient) or len(gradient.path) != 1:
        return None
    variable = node.xs[gradient.path[0][1]]
    readers = [operation for operation in node.path if variable.key in {tensor.key for tensor in operation.inputs}]
    if not readers or not all(_looks_up(reader, variable) for reader in readers):
        return None
    return Lookups(node.ys, [reader.output for reader in readers])


def rows_looked_up(gradient: Any) -> list[Any]:
    """Returns the gradients that TensorFlow's norm of this gradient sums over: one for each lookup of a row."""
    found = lookups(gradient)
    return [gradient] if found is None else [part for part in gradients(found.ys, found.rows) if part is not None]


def where_touched(gradient: Any, new: Any, old: Any) -> Any:
    """Selects the new rows where a row's gradient is not zero, the old rows elsewhere."""
    touched = jnp.any(gradient != 0, axis=tuple(range(1, gradient.ndim)), keepdims=True)
    return jnp.where(touched, new, old)


def _looks_up(reader: Any, variable: Tensor) -> bool:
    if not isinstance(reader, Function) or getattr(reader, "kind", "") not in _LOOKUPS:
        return False
    return [tensor.key for tensor in reader.inputs].count(variable.key) == 1 and reader.inputs[0].key == variable.key
