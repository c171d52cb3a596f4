"""`tf.py_func`: Python functions in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline import Tensor, host_op
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import argument, as_array
from hookline_tf1._rules.host_strings import STRING, encoded, mark
from hookline_tf1.data._elements import dtype_of


def py_func(
    func: Callable[..., Any], inp: Sequence[Any], Tout: Any, stateful: bool = True, name: str | None = None
) -> Any:
    """Calls a function of NumPy arrays once in each run that needs its results.

    Args:
        func: The function of arrays; a single number is passed as a NumPy scalar, a single string as `bytes`.
        inp: Its arguments: tensors and plain values.
        Tout: The dtype of its result, or the list of its results' dtypes.
        stateful: Without effect: the function is called in each run.
        name: Name of the operation.

    Returns:
        A tensor, or a list of tensors.

    References:
        `tf.py_func`. A result computed from values on the device (variables, computed tensors) can be fetched or
        passed to another function, but no operation on the device can use it in the same run.
    """
    ignored("tf.py_func", stateful=not stateful)
    is_list = isinstance(Tout, list | tuple)
    dtypes = [dtype_of(dtype) for dtype in (Tout if is_list else [Tout])]

    def call(*given: Any) -> Any:
        found = func(*map(_argument, given))
        results = found if is_list else [found]
        if len(dtypes) != len(results or []):
            raise ValueError(f"py_func: {func!r} returned {len(results or [])} values, but Tout has {len(dtypes)}.")
        arrays = [_as_declared(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]
        return tuple(arrays) if is_list else arrays[0]

    get_default_graph()
    made = host_op(call, name or "PyFunc").node(*map(argument, inp))
    if is_list:
        return [_typed(made[i], dtype) for i, dtype in enumerate(dtypes)]
    return _typed(made, dtypes[0])


def _argument(value: Any) -> Any:
    """Converts a value as TensorFlow passes it: numbers to NumPy scalars, one string to `bytes`."""
    array = as_array(value) if isinstance(value, int | float) else encoded(value)
    return array[()] if array.ndim == 0 else array


def _as_declared(value: Any, dtype: Any) -> Any:
    array = encoded(value)
    return array if dtype == STRING else array.astype(dtype)


def _typed(tensor: Tensor, dtype: Any) -> Tensor:
    """Sets the dtype of a tensor of unknown shape, and returns the tensor."""
    if dtype == STRING:
        return mark(tensor, None)
    if not tensor.path:
        tensor.op.dtype = dtype  # type: ignore[attr-defined]
    return tensor
