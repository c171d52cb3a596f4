"""Feeds: the values fed for tensors in one run, checked before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from hookline.errors import InvalidArgumentError
from hookline.graph.graph import Graph, Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Placeholder
from hookline.session.plan.fetches import parts_of


def flatten_feeds(feed_dict: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
    """Flattens feeds, so that each key is one tensor.

    A key may be a structure of tensors: a tuple, a named tuple, or anything else hashable that is a mapping or has
    fields. Its value has the same structure, and each tensor is fed the corresponding part.

    Raises:
        ValueError: A value has another structure than its key, or a tensor is fed twice.

    Example:
        >>> import hookline as hl
        >>> x, y = hl.placeholder("float32", name="x"), hl.placeholder("float32", name="y")
        >>> flatten_feeds({(x, y): (1.0, 2.0)}) == {x: 1.0, y: 2.0}
        True
    """
    if not isinstance(feed_dict, Mapping) or all(isinstance(key, Tensor | str) for key in feed_dict):
        return feed_dict
    flat: dict[Any, Any] = {}
    for key, value in feed_dict.items():
        for tensor, part in iter_feeds(key, value):
            if tensor in flat:
                raise ValueError(f"feed_dict: {getattr(tensor, 'name', tensor)!r} is fed twice.")
            flat[tensor] = part
    return flat


def iter_feeds(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each tensor of a key with the corresponding part of the value."""
    keys = None if isinstance(key, Tensor | Operation | str) else parts_of(key)
    if keys is None:
        yield key, value
        return
    values = parts_of(value)
    if values is None or keys.keys() != values.keys():
        given = "no structure" if values is None else f"{len(values)} parts ({', '.join(map(str, values))})"
        raise ValueError(
            f"feed_dict: a key of {len(keys)} parts ({', '.join(map(str, keys))}) must have a value of the same "
            f"structure; it has {given}. The key: {key!r}."
        )
    for name, item in keys.items():
        yield from iter_feeds(item, values[name])


def resolve_feeds(graph: Graph, feed_dict: Mapping[Any, Any]) -> tuple[Tensor, ...]:
    """Returns the fed tensors in the order of `feed_dict`.

    Raises:
        TypeError: A key is neither a tensor nor a name.
        ValueError: A key belongs to another graph, names nothing, or occurs twice.
    """
    tensors: list[Tensor] = []
    for key in feed_dict:
        try:
            element = graph.as_graph_element(key)
        except (TypeError, ValueError, KeyError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"feed_dict: {key!r} cannot be fed. {error.args[0]}") from None
        if not isinstance(element, Tensor):
            raise TypeError(f"feed_dict: {element.name!r} is an operation; feed its tensor, {element.output.name!r}.")
        if element.key in [tensor.key for tensor in tensors]:
            raise ValueError(f"feed_dict: {element.name!r} is fed twice.")
        tensors.append(element)
    return tuple(tensors)


def feed_key(feed_dict: Mapping[Any, Any] | None) -> Hashable:
    """Returns the cache key of feeds; it is equal for feeds of the same tensors."""
    if not feed_dict:
        return None
    if type(feed_dict) is not dict and not isinstance(feed_dict, Mapping):
        raise TypeError(f"feed_dict must be a dict from tensors to values, got {feed_dict!r}.")
    return tuple([key.key if isinstance(key, Tensor) and key.path else key for key in feed_dict])


def make_feed_converter(tensor: Tensor) -> Callable[[Any], Any]:
    """Returns a function that checks and casts a value fed for `tensor`; it copies NumPy arrays of numbers."""
    placeholder = tensor.op if isinstance(tensor.op, Placeholder) and not tensor.path else None
    if placeholder is not None and placeholder.is_text:
        return lambda value: _convert_text(tensor, placeholder, tensor.convert_feed(value))
    if tensor.dtype is None or tensor.op.host_only:
        return lambda value: _convert_tree(tensor, tensor.convert_feed(value))
    dtype = specs.canonical_dtype(tensor.dtype)
    accepted: set[tuple[Any, Any]] = set()
    converts = type(tensor).convert_feed is not Tensor.convert_feed
    # The class and aval of the latest array that was fed unchanged. JAX shares `aval` among arrays of one shape and
    # dtype.
    latest_class, latest_aval = None, None

    def check(value: Any) -> Any:
        nonlocal latest_class, latest_aval
        if value.__class__ is latest_class and value.aval is latest_aval:
            return value
        if converts:
            value = tensor.convert_feed(value)
        given = value if isinstance(value, jax.Array) else _as_numpy(tensor, value)
        form = (given.shape, given.dtype)
        if form not in accepted:
            _check_spec(tensor, given, dtype)
            accepted.add(form)
        if isinstance(given, jax.Array):
            # Checking whether the numbers fit would wait for the device.
            if given.dtype != dtype:
                check_not_deleted([(tensor, given)])
                return given.astype(dtype)
            if not converts:
                latest_class, latest_aval = given.__class__, given.aval
            return given
        problem = specs.describe_overflow(given, dtype)
        if problem:
            raise _feed_error(tensor, problem)
        # JAX may use the memory of a NumPy array in place while the run goes on; the caller may change it at once.
        return given.astype(dtype)

    return check


def _feed_error(tensor: Tensor, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(tensor.op.node_def, tensor.op, f"The value fed for {tensor.name!r} {problem}.")


def _as_numpy(tensor: Tensor, value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        raise TypeError(
            f"feed_dict: {tensor.name!r} is fed the tensor {value.name!r}; feed a value, such as its result in a run."
        )
    try:
        return np.asarray(value)
    except jax.errors.JaxRuntimeError:  # The computation of an array in it failed, and this is its error.
        raise
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: an array in it was deleted.
        raise InvalidArgumentError(
            tensor.op.node_def,
            tensor.op,
            f"The value fed for {tensor.name!r} is not an array: {str(error).rstrip('.')}.",
        ) from None


def check_not_deleted(pairs: Iterable[tuple[Tensor, Any]]) -> None:
    """Checks that no fed array was deleted before the run, by donation for example.

    Raises:
        InvalidArgumentError: One of the fed values was deleted.
    """
    for tensor, value in pairs:
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
                raise _feed_error(
                    tensor,
                    "was deleted before the run: a jitted function with donate_argnums deletes its arguments. Feed an "
                    "array that was not donated",
                )


def _check_spec(tensor: Tensor, given: Any, dtype: Any) -> None:
    if isinstance(given, np.ndarray) and given.size and given.dtype.kind in "OSU":
        raise _feed_error(tensor, f"has dtype {given.dtype}, where {dtype} is required: {reprlib.repr(given.tolist())}")
    wanted = tensor.spec if tensor.spec is not specs.UNKNOWN else jax.ShapeDtypeStruct(given.shape, dtype)
    # NumPy's default dtype of an empty list does not count.
    problem = specs.describe_mismatch(wanted, given.shape, given.dtype if given.size else dtype)
    if problem:
        raise _feed_error(tensor, problem)


def _convert_text(tensor: Tensor, placeholder: Placeholder, value: Any) -> Any:
    try:
        # As objects: NumPy would convert a number beside text to text.
        form = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
    except ValueError as error:
        raise _feed_error(tensor, f"is not an array: {error}") from None
    if form.dtype.kind not in "SU" and not all(isinstance(item, str | bytes) for item in form.flat):
        raise _feed_error(tensor, f"is not text: {value!r}")
    wanted = placeholder.shape
    if wanted is not None and not specs.is_compatible_shape(form.shape, wanted):
        raise _feed_error(tensor, f"has shape {form.shape}, but {tuple(wanted)} is required (None: any length)")
    return value


def _convert_tree(tensor: Tensor, value: Any) -> Any:
    if tensor.spec is specs.UNKNOWN:
        return jax.tree.map(_copy_numpy, value)
    if jax.tree.structure(value) != jax.tree.structure(tensor.spec):
        raise InvalidArgumentError(
            tensor.op.node_def,
            tensor.op,
            f"The value fed for {tensor.name!r} has the structure {jax.tree.structure(value)}, but "
            f"{jax.tree.structure(tensor.spec)} is required.",
        )
    return jax.tree_util.tree_map_with_path(
        lambda path, spec, leaf: _convert_leaf(tensor, path, spec, leaf), tensor.spec, value
    )


def _convert_leaf(tensor: Tensor, path: Any, spec: Any, leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    problem = specs.describe_mismatch(spec, np.shape(leaf), dtype)
    if problem is None and not isinstance(leaf, jax.Array):
        problem = specs.describe_overflow(np.asarray(leaf), spec.dtype)
    if problem:
        raise _feed_error(tensor, f"at {jax.tree_util.keystr(path)} {problem}")
    return _copy_numpy(leaf)


def _copy_numpy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@jax.tree_util.register_pytree_node_class
class StaticArray:
    """A pytree without leaves: the numbers of its array are part of the tree structure, and so static to `jax.jit`.

    Example:
        >>> jax.jit(lambda size: np.zeros(size.array))(StaticArray(np.asarray(2))).shape
        (2,)
    """

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def tree_flatten(self) -> tuple[tuple[()], tuple[Any, ...]]:
        """Returns no children, and the numbers, dtype and shape, by which JAX compares two such arrays."""
        return (), (self.array.tobytes(), self.array.dtype.str, self.array.shape)

    @classmethod
    def tree_unflatten(cls, form: tuple[Any, ...], children: tuple[()]) -> StaticArray:
        """Returns the array again."""
        numbers, dtype, shape = form
        return cls(np.frombuffer(numbers, dtype).reshape(shape))

    def __repr__(self) -> str:
        return f"{self.array.tolist()}"
