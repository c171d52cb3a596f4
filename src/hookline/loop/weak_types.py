"""Weak types in a state: the types that a hand-written loop comes to, from the first step on.

`jit` compiles a step again when its state comes back with other types: a weakly typed 0 is int32, and float32 after the
first step. A variable has one type. So the step is traced until it returns the types that it is given, and the initial
values are converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import spec as specs
from hookline.loop.leaf_types import InvalidStep, dtype_of, is_array, is_value, is_weak


def typed(leaf: Any, weak: bool) -> Any:
    """Returns the spec of an array, with its weak type."""
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype_of(leaf), weak_type=weak)


def seen(leaves: Sequence[Any]) -> list[Any]:
    """Returns the specs of traced leaves, which would keep the whole trace; others as they are."""
    return [typed(leaf, is_weak(leaf)) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]


def expected(leaf: Any, weak: bool, after: Any) -> Any:
    """Returns the spec of a leaf after a step: of a weak type only the shape is known."""
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype_of(after)) if weak and is_value(after) else leaf


def follow(
    paths: Sequence[str], leaves: list[Any], weak: list[bool], seen: Sequence[Any], recompiling: dict[str, Any]
) -> list[str]:
    """Gives arrays the types with which a step returned them; returns the paths of those whose type has changed.

    Args:
        paths: The paths of the leaves.
        leaves: The initial values, which are converted in place.
        weak: Whether each has a weak type; changed in place.
        seen: The leaves after the step. Where the type is not weak, the dtype is the same.
        recompiling: Gets the new dtypes, by path.

    Raises:
        InvalidStep: A new dtype cannot hold the value.
    """
    changed = []
    for index, after in enumerate(seen):
        before = leaves[index]
        if not is_array(before) or (dtype_of(before), weak[index]) == (dtype_of(after), is_weak(after)):
            continue
        if dtype_of(before) != dtype_of(after):
            recompiling[paths[index]] = dtype_of(after)
        leaves[index], weak[index] = _converted(paths[index], before, dtype_of(after)), is_weak(after)
        changed.append(paths[index])
    return changed


def _converted(path: str, before: Any, dtype: Any) -> Any:
    old = dtype_of(before)
    if old == dtype:
        return before
    is_abstract = isinstance(before, jax.ShapeDtypeStruct)
    new = jax.ShapeDtypeStruct(before.shape, dtype, sharding=before.sharding) if is_abstract else before.astype(dtype)
    loses = jnp.promote_types(old, dtype) != dtype and not (
        jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)
    )
    if loses and (is_abstract or not bool(jnp.all(new == before))):
        raise InvalidStep(
            f"the state at {path!r} was given as {'a number' if is_abstract else before} of dtype {old}, and returned "
            f"as {dtype}, which cannot hold it. Give an array, such as jnp.zeros((), {str(dtype)!r})",
            ValueError,
        )
    return new


def weakened(array: Any) -> Any:
    """Returns an array with a weak type, like that of a Python number."""
    return jax.lax.convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=True, sharding=None)


def strong(tree: Any) -> Any:
    """Returns arrays as variables hold them, without weak types, for which the second step would be compiled again."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        if isinstance(leaf, np.ndarray | np.generic):
            return np.asarray(leaf, specs.canonical_dtype(leaf.dtype))
        return jnp.asarray(leaf, dtype_of(leaf)) if is_weak(leaf) else leaf

    return jax.tree.map(one, tree)


def as_given(before: Any, after: Any) -> Any:
    """Returns the values after a step with the strong types of those before it."""
    return jax.tree.map(lambda one, other: jnp.asarray(other, one.dtype) if is_weak(other) else other, before, after)


def in_dtypes(like: Any, values: Any) -> Any:
    """Returns initial values that a function has made, in the dtypes to which a step turned such values."""
    return jax.tree.map(lambda one, made: made if made.dtype == one.dtype else made.astype(one.dtype), like, values)
