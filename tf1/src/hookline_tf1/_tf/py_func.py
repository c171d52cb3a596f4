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
    """Returns the results of a function of NumPy arrays, called once in each run that needs them.

    Args:
        func: The function. It is given arrays; numbers alone as NumPy's scalars, and one text as `bytes`.
        inp: Its arguments: tensors and plain values.
        Tout: The dtype of its result, or the list of its results' dtypes.
        stateful: Without effect: the function is called in each run.
        name: Name of the operation.

    Returns:
        A tensor, or a list of tensors.

    References:
        `tf.py_func`. A result computed from values on the device (variables, computed tensors) can be fetched or
        handed to another function, but no operation of the device can use it in the same run.
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
        return [_typed(made[place], dtype) for place, dtype in enumerate(dtypes)]
    return _typed(made, dtypes[0])


def _argument(value: Any) -> Any:
    """Returns a value as TensorFlow hands it over: numbers as NumPy's, one text as `bytes`."""
    array = as_array(value) if isinstance(value, int | float) else encoded(value)
    return array[()] if array.ndim == 0 else array


def _as_declared(value: Any, dtype: Any) -> Any:
    array = encoded(value)
    return array if dtype == STRING else array.astype(dtype)


def _typed(tensor: Tensor, dtype: Any) -> Tensor:
    """Returns the tensor with its dtype, where its shape is not known."""
    if dtype == STRING:
        return mark(tensor, None)
    if not tensor.path:
        tensor.op.dtype = dtype  # type: ignore[attr-defined]
    return tensor
