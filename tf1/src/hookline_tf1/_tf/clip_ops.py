"""Clips tensors by their global norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.indexed_slices import rows_looked_up
from hookline_tf1._machinery.nodes import argument, op

__all__ = ["clip_by_global_norm", "global_norm"]


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Any:
    """Computes the global norm of several tensors; skips None.

    In the gradient of an embedding table, a row counts once for each lookup, as in TensorFlow.

    References:
        `tf.global_norm`.
    """
    tensors = [argument(part) for tensor in _listed(t_list) if tensor is not None for part in rows_looked_up(tensor)]
    return op(_norm, name=name or "global_norm")(tensors)


def _norm(tensors: Sequence[Any]) -> Any:
    return jnp.sqrt(sum(jnp.sum(jnp.square(tensor)) for tensor in tensors))


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Any]:
    """Scales tensors by one factor so that their global norm is at most `clip_norm`; returns them and the norm.

    If the norm is not finite, all become NaN.

    References:
        `tf.clip_by_global_norm`.
    """
    listed = _listed(t_list)
    with name_scope(name, "clip_by_global_norm"):
        norm = global_norm(listed) if use_norm is None else use_norm
        clip = op(_clipped, name="clipped")
        return [None if tensor is None else clip(argument(tensor), clip_norm, norm) for tensor in listed], norm


def _clipped(tensor: Any, clip_norm: Any, norm: Any) -> Any:
    scale = clip_norm * jnp.minimum(1 / norm, 1 / jnp.asarray(clip_norm, jnp.float32))
    return tensor * jnp.where(jnp.isfinite(norm), scale, jnp.nan).astype(tensor.dtype)


def _listed(t_list: Any) -> list[Any]:
    if not isinstance(t_list, list | tuple):
        raise TypeError(f"tf.clip_by_global_norm and tf.global_norm require a list of tensors, got {t_list!r}.")
    return list(t_list)
