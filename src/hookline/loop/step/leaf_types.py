"""The types of a state's leaves: arrays, numbers, NNX objects; and weak types, which a step may fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph.nodes import spec as specs

_MOST_KEYS = 6


class InvalidStep(Exception):
    """Raised for an unusable result of a step; `step_errors` converts it into an error of the class `kind`."""

    def __init__(self, message: str, kind: type[Exception] = TypeError) -> None:
        super().__init__(message)
        self.kind = kind


def is_nnx(value: Any) -> bool:
    """Returns whether a value is an object of Flax NNX, such as a module or an optimizer, without importing Flax."""
    return any(
        kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Pytree", "Object", "Module")
        for kind in type(value).__mro__
    )


def are_nnx(state: Any) -> bool:
    """Returns whether a state is an NNX object, or a tuple or dict of them."""
    items = tuple(state.values()) if type(state) is dict else state
    return is_nnx(state) or (isinstance(items, tuple) and bool(items) and all(map(is_nnx, items)))


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is an array of numbers, or a `jax.ShapeDtypeStruct`."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm"


def is_number(leaf: Any) -> bool:
    """Returns whether a leaf is a Python number."""
    return isinstance(leaf, bool | int | float | complex)


def is_value(leaf: Any) -> bool:
    """Returns whether a leaf is an array or a Python number."""
    return is_array(leaf) or is_number(leaf)


def dtype_of(leaf: Any) -> Any:
    """Returns the dtype that JAX gives to an array or a Python number."""
    if isinstance(leaf, np.ndarray | np.generic):
        return specs.canonical_dtype(leaf.dtype)
    return getattr(leaf, "dtype", None) or jax.dtypes.result_type(leaf)


def is_weak(leaf: Any) -> bool:
    """Returns whether a value has a weak type, as Python numbers have."""
    return not isinstance(leaf, bool) and (not hasattr(leaf, "dtype") or getattr(leaf, "weak_type", False))


# How types settle, for `{"return": jnp.array(0), "rate": 0.5}` and a step that adds `batch.mean()` to "return":
#
#     trace   "return" before the step   after the step   so
#     1       int32, weak                float32          it becomes float32, not weak: 0 is 0.0, nothing is lost
#     2       float32                    float32          the types are settled, and the step is compiled for these
#
# The step returns "rate" as the same Python number, so "rate" stays static, outside the variable. If "return" were
# `jnp.array(0.5)` at first and int32 after the step, int32 could not represent 0.5, and the step would raise an error.
# So do types that change in each of three traces: a hand-written loop would compile a program for each.


def leaf_spec(leaf: Any, weak: bool) -> Any:
    """Returns the spec of an array, with its weak type."""
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype_of(leaf), weak_type=weak)


def traced_specs(leaves: Sequence[Any]) -> list[Any]:
    """Returns the leaves with specs in place of traced ones, which would keep the whole trace in memory."""
    return [leaf_spec(leaf, is_weak(leaf)) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]


def expected_spec(leaf: Any, weak: bool, after: Any) -> Any:
    """Returns the spec that a leaf must have after a step; a weakly typed leaf may change its dtype."""
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype_of(after)) if weak and is_value(after) else leaf


def adopt_types(
    paths: Sequence[str], leaves: list[Any], weak: list[bool], traced: Sequence[Any], recompiling: dict[str, Any]
) -> list[str]:
    """Gives arrays the types with which a step returned them; returns the paths of those whose type has changed.

    Args:
        paths: The paths of the leaves.
        leaves: The initial values, which are converted in place.
        weak: Whether each has a weak type; changed in place.
        traced: The leaves after the step. Where the type is not weak, the dtype is the same.
        recompiling: The changed dtypes by path, to which new ones are added.

    Raises:
        InvalidStep: A new dtype cannot represent the value.
    """
    changed = []
    for index, after in enumerate(traced):
        before = leaves[index]
        if not is_array(before) or (dtype_of(before), weak[index]) == (dtype_of(after), is_weak(after)):
            continue
        if dtype_of(before) != dtype_of(after):
            recompiling[paths[index]] = dtype_of(after)
        leaves[index], weak[index] = _convert(paths[index], before, dtype_of(after)), is_weak(after)
        changed.append(paths[index])
    return changed


def _convert(path: str, before: Any, dtype: Any) -> Any:
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


def as_weak(array: Any) -> Any:
    """Returns an array with a weak type, like that of a Python number."""
    return jax.lax.convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=True, sharding=None)


def as_strong(tree: Any) -> Any:
    """Returns arrays as variables hold them, without weak types: with these the second step would be compiled again."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        if isinstance(leaf, np.ndarray | np.generic):
            return np.asarray(leaf, specs.canonical_dtype(leaf.dtype))
        return jnp.asarray(leaf, dtype_of(leaf)) if is_weak(leaf) else leaf

    return jax.tree.map(one, tree)


def cast_to_given(before: Any, after: Any) -> Any:
    """Returns the values after a step with the strong types of those before it."""
    return jax.tree.map(lambda one, other: jnp.asarray(other, one.dtype) if is_weak(other) else other, before, after)


def cast_to_dtypes(like: Any, values: Any) -> Any:
    """Returns initial values that a function has made, in the dtypes that traces of the step have found."""
    return jax.tree.map(lambda one, made: made if made.dtype == one.dtype else made.astype(one.dtype), like, values)


def describe_kind(value: Any) -> str:
    """Describes a value in a few words.

    Example:
        >>> describe_kind({"w": 1.0, "b": 0.0}), describe_kind((1, 2)), describe_kind(np.zeros((2, 3)))
        ('a dict of w, b', 'a tuple of 2', 'float32[2, 3]')
    """
    if is_array(value):
        return f"{dtype_of(value)}{list(np.shape(value))}"
    if type(value) is tuple:
        return f"a tuple of {len(value)}"
    shown = [*map(str, value)] if type(value) is dict else []
    keys = ", ".join(shown if len(shown) <= _MOST_KEYS else [*shown[:_MOST_KEYS], "..."])
    return f"a {type(value).__name__}{keys and f' of {keys}'}"
