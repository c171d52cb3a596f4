"""`tf.gradients` and `tf.hessians`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import hookline as core
from hookline import Tensor
from hookline_tf1._machinery.graphs import get_default_graph, name_scope
from hookline_tf1._machinery.ignored_arguments import ignored, unknown
from hookline_tf1._machinery.nodes import argument, convert_to_tensor, node, op

__all__ = ["gradients", "hessians"]


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = None,
) -> list[Any]:
    """Computes the gradients of the sum of `ys` with respect to each of `xs`; `None` where it does not depend on one.

    References:
        `tf.gradients`. The gradient with respect to integers is `None`. `stop_gradients` is refused: use
        `tf.stop_gradient`.
    """
    ignored("tf.gradients", colocate_gradients_with_ops=colocate_gradients_with_ops, gate_gradients=gate_gradients)
    ignored("tf.gradients", aggregation_method=aggregation_method)
    if stop_gradients:
        raise NotImplementedError("tf.gradients: stop_gradients is not available; use tf.stop_gradient.")
    get_default_graph()
    ys = [convert_to_tensor(y) for y in (ys if isinstance(ys, list | tuple) else [ys])]
    xs = list(xs) if isinstance(xs, list | tuple) else [xs]
    if grad_ys is not None:
        given = grad_ys if isinstance(grad_ys, list | tuple) else [grad_ys]
        ys = [y if g is None else _weighted(y, g) for y, g in zip(ys, given, strict=True)]
    floating = [x for x in xs if _is_floating(x)]
    found = iter(core.gradients([y for y in ys if _is_floating(y)], floating, name=name) if floating else [])
    grads = [next(found) if _is_floating(x) else None for x in xs]
    if unconnected_gradients in (None, "none"):
        return grads
    if unconnected_gradients != "zero":
        raise ValueError(f"Unknown value for unconnected_gradients: {unconnected_gradients!r}: 'none' or 'zero'.")
    return [
        op(jnp.zeros_like, name="zeros_like")(x) if grad is None else grad for x, grad in zip(xs, grads, strict=True)
    ]


def _weighted(y: Any, weight: Any) -> Any:
    return node(
        lambda y, weight: jnp.sum(y * jax.lax.stop_gradient(weight)), "grad_ys", {"y": y, "weight": argument(weight)}
    )


def _is_floating(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tf.gradients: a tensor or a variable is required, got {tensor!r}.")
    dtype = tensor.dtype
    return dtype is None or jnp.issubdtype(dtype, jnp.inexact)


def hessians(ys: Any, xs: Any, name: str = "hessians", **further: Any) -> list[Any]:
    """`tf.hessians` of a scalar with respect to vectors."""
    unknown("tf.hessians", further, "colocate_gradients_with_ops", "gate_gradients", "aggregation_method")
    xs = list(xs) if isinstance(xs, list | tuple) else [xs]
    found = []
    with name_scope(name):
        for x in xs:
            (grad,) = gradients(ys, [x])
            rows = [gradients(grad[i], [x])[0] for i in range(len(x))]
            found.append(convert_to_tensor(rows))
    return found
