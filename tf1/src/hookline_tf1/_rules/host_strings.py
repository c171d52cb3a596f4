"""String tensors: NumPy arrays of `bytes` that stay on the host, where functions of them run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hookline import Tensor
from hookline.extend import HostCall, Path, get_at_path, specs

STRING = "string"
"""The dtype of strings."""

Shape = tuple[int | None, ...] | None


def encoded(value: Any) -> np.ndarray:
    """Converts a value to a NumPy array; strings become an array of `bytes`."""
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value, dtype=object)  # Otherwise NumPy drops trailing zero bytes of a string.
    if array.dtype.kind not in "SU" and not (array.dtype.kind == "O" and all(map(_is_word, array.flat))):
        return array
    text = np.empty(array.size, dtype=object)
    text[:] = [item.encode() if isinstance(item, str) else bytes(item) for item in array.flat]
    return text.reshape(array.shape)


def as_word(value: Any) -> str:
    """Decodes one string to Python's `str`."""
    return bytes(encoded(value).item()).decode()


def as_row(names: Any) -> np.ndarray:
    """Converts a list of strings, also an empty one, to an array of `bytes`."""
    return encoded(np.array(names, dtype=object))


def _is_word(item: Any) -> bool:
    return isinstance(item, str | bytes)


def is_plain_text(value: Any) -> bool:
    """Whether a value is a string, or a list or array of strings, without a tensor."""
    if isinstance(value, str | bytes):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "SU" or (
            value.dtype.kind == "O" and value.size > 0 and all(map(_is_word, value.flat))
        )
    leaves = jax.tree.leaves(value) if isinstance(value, list | tuple) else []
    return bool(leaves) and all(isinstance(leaf, str | bytes | np.ndarray) and is_plain_text(leaf) for leaf in leaves)


def mark(tensor: Tensor, shape: Any) -> Tensor:
    """Marks a tensor, or a part of one, as strings of a shape; `None` if the shape is unknown."""
    op: Any = tensor.op
    op.texts = {**getattr(op, "texts", {}), tensor.path: None if shape is None else tuple(shape)}
    op.host_only = op.host_only or not tensor.path
    return tensor


def _marked(tensor: Tensor) -> tuple[Shape, Path] | None:
    """Returns the shape of the string tensor that a tensor belongs to, and its part; `None` for no strings."""
    marks: dict[Path, Shape] = getattr(tensor.op, "texts", {(): None} if tensor.op.host_only else {})
    for depth in range(len(tensor.path), -1, -1):
        if tensor.path[:depth] in marks:
            return marks[tensor.path[:depth]], tensor.path[depth:]
    return None


def is_text(value: Any) -> bool:
    """Whether a tensor holds strings."""
    return isinstance(value, Tensor) and _marked(value) is not None


def shape_of(tensor: Tensor) -> Shape:
    """Returns the shape of a string tensor, as far as it is known."""
    found = _marked(tensor)
    shape, path = found if found is not None else (None, ())
    if shape is None or not path:
        return shape
    found, _ = _tried(lambda size: get_at_path(_words(shape, size), path))
    return _common(found)


def parts_of(tensor: Tensor) -> int | None:
    """Counts the strings in a list tensor, or the rows of a string tensor; `None` if the number is unknown."""
    marks = getattr(tensor.op, "texts", {})
    listed = [path for path in marks if path[:-1] == tensor.path and len(path) == len(tensor.path) + 1]
    shape = shape_of(tensor)
    return len(listed) or (shape[0] if shape else None)


class OnHost(HostCall):
    """A function that takes or returns strings: called with NumPy arrays, once in each run that needs it.

    Args:
        fn: The function.
        name: Its name.
        args: Its arguments, by parameter.
        dtype: The dtype of its result, `STRING` for strings; `None` for a list of string arrays.
        shape: The shape of its result, with `None` for open dimensions, or `None`; a list of shapes for several.
    """

    def __init__(self, fn: Callable[..., Any], name: str, args: dict[str, Any], dtype: Any, shape: Any) -> None:
        self._plain, self._names, self._form = fn, tuple(args), (dtype, shape)
        spec = specs.UNKNOWN if dtype in (None, STRING) or shape is None else specs.array_spec(dtype, shape)
        super().__init__(self._called, name, tuple(args.values()), {}, spec)
        self.type = name.rpartition("/")[2]
        if dtype == STRING:
            mark(self.output, shape)
        elif dtype is None:
            mark(self.output, None)
            for i, part in enumerate(shape or ()):
                mark(self.output[i], part)
        elif shape is None:
            self.dtype = np.dtype(dtype)

    def _called(self, *values: Any) -> Any:
        given = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, values)
        result = self._plain(**dict(zip(self._names, given, strict=True)))
        dtype, _ = self._form
        if dtype is None:
            return [encoded(part) for part in result]
        return encoded(result) if dtype == STRING else np.asarray(result, dtype)

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> OnHost:
        """See `Operation.copy_with_inputs`."""
        values, _ = self.bind(resolve)
        return OnHost(self._plain, name, dict(zip(self._names, values, strict=True)), *self._form)


# Example sizes of an open dimension; a result's dimension is open if it differs between the examples.
_SIZES = (1, 3, 50)


def _tried(fn: Callable[[int], Any]) -> tuple[list[Any], Exception | None]:
    """Calls a function with each example size, and returns the results and the last error."""
    found, failed = [], None
    for size in _SIZES:
        try:
            found.append(fn(size))
        except Exception as error:
            failed = error
    return found, failed


def of_text(fn: Callable[..., Any] | None, name: str, args: dict[str, Any]) -> Tensor:
    """Adds a function of NumPy arrays, some of strings, to the graph and returns its tensor.

    Raises:
        TypeError: The operation has no function of strings.
        ValueError: The function fails for arrays of these shapes.
    """
    tensors = [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, Tensor)]
    if fn is None:
        text = next(tensor for tensor in tensors if is_text(tensor))
        raise TypeError(f"{name}: {text.name!r} holds strings, which stay on the host: use tf.py_func.")
    shapes = [known_shape(tensor) for tensor in tensors]
    found, failed = _tried(lambda size: fn(**_examples(args, size)))
    if failed is not None and all(shape is not None and None not in shape for shape in shapes):
        raise ValueError(f"{name}: {failed}") from failed
    if not found:
        return OnHost(fn, name, args, STRING, None).output
    is_open = None in shapes
    if isinstance(found[0], list):
        each = [None if is_open else _common(list(pair)) for pair in zip(*found, strict=True)]
        return OnHost(fn, name, args, None, each).output
    dtype = encoded(found[0]).dtype
    return OnHost(fn, name, args, STRING if dtype.kind == "O" else dtype, None if is_open else _common(found)).output


def known_shape(tensor: Tensor) -> Shape:
    """Returns the shape of a tensor of strings or numbers."""
    return shape_of(tensor) if is_text(tensor) else specs.open_shape(tensor.spec)


def _examples(args: dict[str, Any], size: int) -> dict[str, Any]:
    """Replaces tensors in arguments by example arrays."""
    return {key: jax.tree.map(lambda leaf: _example(leaf, size), value) for key, value in args.items()}


def broadcast(shapes: list[Shape]) -> Shape:
    """Broadcasts several shapes, as far as they are known.

    Raises:
        ValueError: The shapes do not broadcast.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    found, failed = _tried(lambda size: np.broadcast_arrays(*[_words(shape, size) for shape in known])[0])
    if failed is not None and not any(None in shape for shape in known):
        raise failed
    return _common(found)


def _example(leaf: Any, size: int) -> Any:
    """Returns an array of the tensor's shape and dtype, or the plain value."""
    if not isinstance(leaf, Tensor):
        return leaf
    shape = known_shape(leaf) or ()
    if is_text(leaf):
        return _words(shape, size)
    return np.zeros([size if dim is None else dim for dim in shape], getattr(leaf.dtype, "dtype", leaf.dtype))


def _words(shape: tuple[int | None, ...], size: int) -> np.ndarray:
    return np.full([size if dim is None else dim for dim in shape], b"", object)


def _common(arrays: list[Any]) -> Shape:
    """Returns the common shape of several arrays, open where they differ; `None` if their ranks differ."""
    shapes = [np.shape(array) for array in arrays]
    if len({len(shape) for shape in shapes}) != 1:
        return None
    return tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True))


def _equal(x: Any, y: Any) -> Any:
    return np.asarray(encoded(x) == encoded(y), bool)


def _split(value: Any, num_or_size_splits: Any, axis: Any) -> list[Any]:
    sizes = np.asarray(num_or_size_splits)
    return np.split(value, int(sizes) if sizes.ndim == 0 else np.cumsum(sizes)[:-1], int(axis))


def _unstacked(value: Any, num: Any, axis: Any) -> list[Any]:
    return list(np.moveaxis(value, int(axis), 0))


def _like(tensor: Any, dtype: Any, number: int) -> np.ndarray:
    if dtype is not None:
        return np.full(np.shape(tensor), number, dtype)
    if number:
        raise ValueError("strings have no ones; give a number's dtype.")
    return np.full(np.shape(tensor), b"", object)


TWINS: dict[str, Callable[..., Any] | None] = {
    "Cast": None,
    "Merge": lambda *, p, a, b: np.where(p, encoded(a), encoded(b)),
    "Equal": lambda *, x, y: _equal(x, y),
    "NotEqual": lambda *, x, y: ~_equal(x, y),
    "Add": lambda *, x, y: encoded(x) + encoded(y),
    "add": lambda *, operand_0, operand_1: encoded(operand_0) + encoded(operand_1),
    "Select": lambda *, condition, x, y: np.where(condition, encoded(x), encoded(y)),
    "Tile": lambda *, input, multiples: np.tile(input, np.asarray(multiples)),
    "transpose": lambda *, a, perm, conjugate: np.transpose(a, None if perm is None else np.asarray(perm)),
    "split": _split,
    "unstack": _unstacked,
    "Fill": lambda *, dims, value: np.full(np.asarray(dims), encoded(value)[()], object),
    "zeros_like": lambda *, tensor, dtype: _like(tensor, dtype, 0),
    "ones_like": lambda *, tensor, dtype: _like(tensor, dtype, 1),
}
"""Functions of strings by the kind of operation, for kinds whose `twin` takes no strings."""
