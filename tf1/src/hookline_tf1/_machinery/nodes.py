"""Nodes of the graph: constants, placeholders, and TensorFlow's functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

import hookline as core
from hookline import Tensor as CoreTensor
from hookline.extend import contains_tensor, specs
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._rules import host_strings
from hookline_tf1._rules.constant_folding import WITH_DEFAULT
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._rules.static_arguments import known, made
from hookline_tf1._rules.tensor_shape import Dimension, TensorShape, as_ints

TAKEN: ContextVar[Any] = ContextVar("whether the branch that is being built is taken", default=None)


def node(
    fn: Callable[..., Any],
    name: str,
    args: dict[str, Any],
    *,
    static: tuple[str, ...] = (),
    twin: Callable[..., Any] | None = None,
    spec: Callable[..., Any] | None = None,
    kind: str = "",
    computed: tuple[str, ...] = (),
    within: tuple[Within, ...] = (),
) -> Any:
    """Adds a function of arrays to the default graph and returns its tensor.

    Args:
        fn: The function, called with `args` by name.
        name: Name of the operation.
        args: Tensors and plain values.
        static: The names in `args` that XLA has to know when it compiles.
        twin: The same function on NumPy integers, for arithmetic with shapes.
        spec: Returns the spec of the result for the tensors, where tracing cannot infer it.
        kind: The kind of operation; by default its name.
        computed: The names in `static` that XLA need not know.
        within: Which of `args` are indices, with their bounds.
    """
    get_default_graph()
    given = {key: known(value) if key in static else value for key, value in args.items()}
    how: dict[str, Any] = {"static": static, "twin": twin, "spec": spec, "computed": computed}
    return made(fn, name, given, kind=kind or name, within=within, taken=TAKEN.get(), **how)


def op(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Returns `hookline.op` of a function, which makes an operation even where no argument is a tensor."""
    lifted = core.op(fn, name)

    def make(*args: Any, **kwargs: Any) -> Any:
        get_default_graph()
        return lifted.node(*args, **kwargs)

    return make


# By kind of dtype, the accepted kinds of plain values; arrays are cast.
_FITS = {"b": "b", "i": "bi", "u": "bi", "f": "biuf", "O": "OSU"}


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const", verify_shape: bool = False) -> Any:
    """Returns a tensor of a fixed value.

    References:
        `tf.constant`. 64 bits become 32 unless `jax_enable_x64` is set.
    """
    get_default_graph()
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    value = as_ints(value)
    if contains_tensor(value):
        raise TypeError("tf.constant takes plain values; a tensor is in it. Use tf.stack or tf.convert_to_tensor.")
    array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value)
    if verify_shape and shape is not None and array.shape != tuple(TensorShape(shape).as_list()):
        raise TypeError(f"Expected Tensor's shape: {TensorShape(shape)}, got {array.shape}.")
    is_plain = array is not value and array.size > 0
    if wanted is not None and is_plain and array.dtype.kind not in _FITS.get(wanted.dtype.kind, "biufc"):
        raise TypeError(f"Expected {wanted.name}, got {value!r} of type '{array.dtype.name}' instead.")
    if array.size == 0 and wanted == dtypes.string:
        array = array.astype(object)
    is_text = host_strings.is_plain_text(value) or (array.size == 0 and array.dtype == object)
    if is_text != (wanted == dtypes.string) and wanted is not None:
        raise TypeError(f"tf.constant: {value!r} of dtype {wanted.name} is required, and is not that.")
    if array.dtype.kind in "OSU" and not is_text:
        raise TypeError(f"tf.constant takes numbers and strings, got {value!r}.")
    found = (
        host_strings.encoded(value if array.size else array)
        if is_text
        else as_array(array, wanted, plain=array is not value)
    )
    if shape is not None:
        shape = TensorShape(shape).as_list()
        found = found.reshape(shape) if found.size == np.prod(shape) else _filled(found, shape)
    made = core.constant(found, name=name)
    return host_strings.mark(made, found.shape) if is_text else made


def _filled(array: np.ndarray, shape: Any) -> np.ndarray:
    """Fills up a shape with the last number, like TF 1.x."""
    size = int(np.prod(shape))
    if array.size > size:
        raise ValueError(f"Too many elements provided. Needed at most {size}, but received {array.size}")
    flat = np.full(size, array.ravel()[-1], array.dtype)
    flat[: array.size] = array.ravel()
    return flat.reshape(shape)


def as_array(array: Any, dtype: Any = None, *, plain: bool = True) -> np.ndarray:
    """Casts an array to the dtype of its tensor; `plain` Python numbers become float32 and int32.

    Raises:
        ValueError: JAX's dtype cannot hold a number that TensorFlow's dtype holds.
    """
    array = np.asarray(array)
    if dtype is None and plain:
        small = array.dtype.kind == "i" and not specs.describe_overflow(array, np.int32)
        dtype = dtypes.float32 if array.dtype.kind == "f" else dtypes.int32 if small else None
    if dtype is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            array = array.astype(dtypes.as_dtype(dtype).dtype)
    return dtypes.narrowed(array, dtypes.canonical(array.dtype))


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
    """Returns a tensor that each run that uses it must feed.

    References:
        `tf.placeholder`.
    """
    get_default_graph()
    dtype = dtypes.as_dtype(dtype)
    shape = TensorShape(shape)
    dims = shape.as_list() if shape.is_known else None
    if dtype.name == host_strings.STRING:
        return host_strings.mark(core.placeholder(str, dims, name), dims)
    return core.placeholder(dtype.dtype, dims, name)


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Any:
    """Returns a tensor that may be fed, with `input` as its default.

    References:
        `tf.placeholder_with_default`.
    """
    given = {"input": convert_to_tensor(input)}
    made = node(lambda input: input, name or WITH_DEFAULT, given, twin=lambda input: input, kind=WITH_DEFAULT)
    shape = TensorShape(shape)
    if shape.is_known and host_strings.is_text(made):
        host_strings.mark(made, shape.as_list())
    elif shape.is_known and made.dtype is not None:
        made.spec = specs.array_spec(made.dtype.dtype, shape.as_list())
    return made


def convert_to_tensor(value: Any, dtype: Any = None, name: str | None = None, preferred_dtype: Any = None) -> Any:
    """Converts plain values, or a list with tensors, to a tensor; returns a tensor unchanged.

    References:
        `tf.convert_to_tensor`.
    """
    get_default_graph()
    if isinstance(value, CoreTensor):
        return value
    value = as_ints(value)
    if not contains_tensor(value):
        if dtype is None and preferred_dtype is not None:
            with contextlib.suppress(TypeError, ValueError):
                return constant(value, preferred_dtype, name=name or "Const")
        return constant(value, dtype, name=name or "Const")
    return node(_packed, name or "packed", {"values": value, "dtype": dtype}, twin=_packed_ints)


def _packed(values: Any, dtype: Any = None) -> Any:
    if isinstance(values, list | tuple):
        return jax.numpy.stack([_packed(value, dtype) for value in values])
    return jax.numpy.asarray(values, None if dtype is None else dtypes.canonical(dtype))


def _packed_ints(values: Any, dtype: Any = None) -> Any:
    return np.asarray(values) if not isinstance(values, list | tuple) else np.stack([_packed_ints(v) for v in values])


def argument(value: Any) -> Any:
    """Converts an argument, possibly a tensor, for JAX functions."""
    if value is None or isinstance(value, CoreTensor | bool | int | float | complex):
        return value
    if host_strings.is_plain_text(value):
        return constant(value)
    value = as_ints(value) if isinstance(value, TensorShape | Dimension | list | tuple) else value
    if contains_tensor(value):
        return convert_to_tensor(value)
    if isinstance(value, list | tuple | np.ndarray | np.generic):
        array = np.asarray(value)
        return value if array.dtype.kind == "O" else as_array(array, plain=isinstance(value, list | tuple))
    return value


__all__ = ["constant", "convert_to_tensor", "placeholder", "placeholder_with_default"]
