"""`Dataset.padded_batch`: pads arrays of different shapes into one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hookline_tf1.data import _elements
from hookline_tf1.data._elements import Component


def padded_spec(spec: Any, padded_shapes: Any) -> Any:
    """Returns the partial shapes of padded elements."""
    if padded_shapes is None:
        return spec
    structure = jax.tree.structure(spec, is_leaf=_elements.is_component)
    shapes = [padded_shapes] if isinstance(spec, Component) else structure.flatten_up_to(padded_shapes)
    parts = jax.tree.leaves(spec, is_leaf=_elements.is_component)
    return structure.unflatten([Component(p.dtype, _elements.shape_of(s)) for p, s in zip(parts, shapes, strict=True)])


def padder(spec: Any, padding_values: Any) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that pads and stacks elements, by default with zeros and empty strings."""
    structure = jax.tree.structure(spec, is_leaf=_elements.is_component)
    given = [padding_values] * structure.num_leaves
    if isinstance(padding_values, tuple | dict):
        given = structure.flatten_up_to(padding_values)
    values = structure.unflatten([np.asarray(0 if value is None else value) for value in given])
    return lambda batch: _elements.mapped(_padded, spec, values, *batch)


def _padded(component: Component, value: Any, *leaves: Any) -> Any:
    arrays = [np.asarray(leaf) for leaf in leaves]
    longest = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    shape = tuple(wanted or size for wanted, size in zip(component.shape or longest, longest, strict=True))
    if any(size > wanted for size, wanted in zip(longest, shape, strict=True)):
        raise ValueError(f"padded_batch: an element of shape {longest} is larger than the padded shape {shape}.")
    filler = b"" if component.dtype == _elements.STRING else value.astype(arrays[0].dtype)
    joined = np.full((len(arrays), *shape), filler, arrays[0].dtype)
    for i, array in enumerate(arrays):
        # NumPy would store an array of one string as an object.
        joined[(i, *(slice(size) for size in array.shape))] = array if array.ndim else array.item()
    return joined
