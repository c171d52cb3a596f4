"""The elements of a dataset: structures of arrays with known dtypes and partial shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hookline import Tensor
from hookline.extend import specs
from hookline_tf1._machinery.dtypes import as_dtype
from hookline_tf1._rules.host_strings import STRING, is_text, known_shape
from hookline_tf1._rules.host_strings import encoded as as_array
from hookline_tf1._rules.tensor_shape import TensorShape


class Component(NamedTuple):
    """The dtype and partial shape of one array in every element.

    Attributes:
        dtype: Its dtype; `"string"` for strings; `None` if it is unknown.
        shape: Its shape, with `None` for open dimensions; `None` if it is unknown.
    """

    dtype: Any
    shape: tuple[int | None, ...] | None

    def is_array(self) -> bool:
        """Whether the component has numbers and a known rank."""
        return self.dtype not in (None, STRING) and self.shape is not None


def dtype_of(dtype: Any) -> Any:
    """Converts a dtype to NumPy's or JAX's, or to `"string"`."""
    if dtype is None:
        return None
    name = getattr(dtype, "name", dtype)
    if name in ("string", str, bytes):
        return STRING
    found = jax.numpy.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return STRING if found.kind in "OSU" else specs.canonical_dtype(found)


def shape_of(shape: Any) -> tuple[int | None, ...] | None:
    """Converts a tuple, a list or a `TensorShape` to a tuple; an unknown shape to `None`."""
    if shape is None:
        return None
    dims = shape.as_list() if hasattr(shape, "as_list") else shape
    return tuple(None if dim is None or int(dim) < 0 else int(dim) for dim in dims)


def arranged(value: Any) -> Any:
    """Converts a value to a structure of arrays and tensors; everything but tuples and dicts becomes one array."""
    if isinstance(value, dict):
        return type(value)((key, arranged(part)) for key, part in value.items())
    if isinstance(value, tuple):
        parts = [arranged(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value if isinstance(value, Tensor) else as_array(value)


def component_of(value: Any) -> Component:
    """Returns the dtype and partial shape of an array or a tensor."""
    if is_text(value):
        return Component(STRING, known_shape(value))
    if isinstance(value, Tensor):
        if specs.is_array(value.spec):
            return Component(value.spec.dtype, specs.open_shape(value.spec))
        return Component(dtype_of(value.dtype), None)
    return Component(dtype_of(value.dtype), value.shape)


def without_first(component: Component, who: str) -> Component:
    """Returns the component of an array's slices along its first dimension."""
    if component.shape == ():
        raise ValueError(f"{who} requires arrays of at least one dimension, got a single number or string.")
    return Component(component.dtype, component.shape and component.shape[1:])


def with_first(component: Component, size: int | None) -> Component:
    """Returns the component of a stack of such arrays."""
    return Component(component.dtype, None if component.shape is None else (size, *component.shape))


def is_component(value: Any) -> bool:
    """Whether a value is a component, which is a tuple but not a structure."""
    return isinstance(value, Component)


def types_of(spec: Any) -> Any:
    """Returns the dtypes of the components."""
    return mapped(lambda part: None if part.dtype is None else as_dtype(part.dtype), spec)


def shapes_of(spec: Any) -> Any:
    """Returns the shapes of the components."""
    return mapped(lambda part: TensorShape(part.shape), spec)


def mapped(fn: Callable[..., Any], spec: Any, *others: Any) -> Any:
    """Maps a function over the components of a structure, with the corresponding parts of other structures."""
    return jax.tree.map(fn, spec, *others, is_leaf=is_component)


def spread(spec: Any, value: Any) -> Any:
    """Splits a value, such as padded shapes, into one part for each component of a structure."""
    return jax.tree.structure(spec, is_leaf=is_component).flatten_up_to(value)


def stacked(elements: Sequence[Any]) -> Any:
    """Stacks elements along a new first dimension."""
    return jax.tree.map(lambda *leaves: as_stack(leaves), *elements)


def as_stack(leaves: Iterable[Any]) -> Any:
    """Stacks arrays."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    if len({array.shape for array in arrays}) > 1:
        shapes = sorted({array.shape for array in arrays})
        raise ValueError(f"batch requires elements of one shape, got {shapes}: use padded_batch, or map them to one.")
    return np.stack(arrays)


def tensors_in(*values: Any) -> tuple[Tensor, ...]:
    """Returns the tensors in values."""
    return tuple(leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, Tensor))


def declared(output_types: Any, output_shapes: Any) -> Any:
    """Returns a structure of components with these dtypes and shapes; None means unknown shapes."""
    dtypes = jax.tree.map(dtype_of, output_types, is_leaf=lambda leaf: not isinstance(leaf, tuple | dict))
    structure = jax.tree.structure(dtypes)
    if output_shapes is None:
        shapes = [None] * structure.num_leaves
    else:
        is_single = jax.tree_util.treedef_is_leaf(structure)
        shapes = [output_shapes] if is_single else structure.flatten_up_to(output_shapes)
    return structure.unflatten(map(Component, jax.tree.leaves(dtypes), map(shape_of, shapes)))


def as_declared(component: Component, value: Any) -> Any:
    """Casts an array to the declared dtype.

    Raises:
        ValueError: The array's shape differs from the declared one.
    """
    array = as_array(value)
    if component.shape is not None and not specs.is_compatible_shape(array.shape, component.shape):
        raise ValueError(f"from_generator: an element has shape {array.shape}, but {component.shape} is declared.")
    return array if component.dtype in (None, STRING) else array.astype(component.dtype)


def common(one: Component, other: Component) -> Component:
    """Merges two components; dimensions that differ are open."""
    if one.dtype != other.dtype:
        raise TypeError(f"concatenate requires elements of one dtype, got {one.dtype} and {other.dtype}.")
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return Component(one.dtype, None)
    return Component(one.dtype, tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)))
