"""Infers partial shapes: the known dimensions of results whose shapes depend on numbers computed in the run.

TensorFlow keeps the dimensions that the arguments fix: `tf.zeros(tf.stack([size, 3]))` has two dimensions, and the
second is 3. So each kind of operation with such arguments has a rule, which infers the dtype and the dimensions of the
result.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hookline import Tensor
from hookline.extend import specs
from hookline_tf1._rules import constant_folding

Dims = list[Any]


def of(kind: str, args: dict[str, Any]) -> Any:
    """Infers the spec of an operation's result, as far as its rule can.

    Args:
        kind: TensorFlow's name of the operation.
        args: Its arguments, by parameter.
    """
    if kind not in _RULES:
        return specs.UNKNOWN
    try:
        dtype, dims = _RULES[kind](types.SimpleNamespace(**args))
    except (constant_folding.Unknown, ValueError):  # The run reports invalid shapes.
        return specs.UNKNOWN
    found = specs.array_spec(dtype, [None if dim is None or dim < 0 else dim for dim in dims])
    return [found, jax.ShapeDtypeStruct(found.shape, np.int32)] if kind == "TopKV2" else found


def _dims(value: Any) -> Dims:
    """Returns the dimensions of a tensor or an array of known rank."""
    found = specs.open_shape(value.spec) if isinstance(value, Tensor) else np.shape(value)
    if found is None:
        raise constant_folding.Unknown
    return list(found)


def _dtype(*values: Any) -> Any:
    """Returns the dtype of tensors, plain values and names of dtypes together."""
    dtypes = [getattr(value, "dtype", None) if isinstance(value, Tensor) else value for value in values]
    if any(dtype is None for dtype in dtypes):
        raise constant_folding.Unknown
    return jax.numpy.result_type(*[getattr(dtype, "dtype", dtype) for dtype in dtypes])


def _numbers(value: Any) -> Dims:
    found = constant_folding.partly(value)
    return found if isinstance(found, list) else [found]


def _filled(op: Any) -> Any:
    return op.dtype, _numbers(op.shape)


def _tiled(op: Any) -> Any:
    pairs = zip(_dims(op.input), _numbers(op.multiples), strict=True)
    return _dtype(op.input), [None if None in pair else pair[0] * pair[1] for pair in pairs]


def _padded(op: Any) -> Any:
    pairs = zip(_dims(op.tensor), _numbers(op.paddings), strict=True)
    return _dtype(op.tensor), [None if None in (dim, *around) else dim + sum(around) for dim, around in pairs]


def _sliced(op: Any) -> Any:
    sizes, starts = _numbers(op.size), _numbers(op.begin)
    pairs = zip(_dims(op.input_), starts, strict=True)
    left = [None if None in (whole, start) else whole - start for whole, start in pairs]
    return _dtype(op.input_), [rest if wanted == -1 else wanted for wanted, rest in zip(sizes, left, strict=True)]


def _window(op: Any) -> Any:
    if not hasattr(op, "bounds"):  # Indexed by tensors.
        raise constant_folding.Unknown
    left, dims = _dims(op.x), []
    taken = sum(other is not None and other is not Ellipsis for other in op.others) + sum(map(bool, op.bounds))
    for other, bound in zip(op.others, op.bounds, strict=True):
        if bound is not None:
            dims.append(_between(left.pop(0), bound))
        elif other is Ellipsis:
            kept = len(left) - taken
            dims, left = dims + left[:kept], left[kept:]
        elif other is None:
            dims.append(1)
        elif _dims(other):
            raise constant_folding.Unknown
        else:
            left.pop(0)
    return _dtype(op.x), dims + left


def _between(whole: int | None, bound: Any) -> int | None:
    """Counts the elements of a dimension between two bounds."""
    ends = [None if end is None else constant_folding.partly(end) for end in bound]
    are_known = all(known is not None or end is None for known, end in zip(ends, bound, strict=True))
    return len(range(whole)[slice(*ends)]) if are_known and whole is not None else None


def _strided(op: Any) -> Any:
    if op.begin_mask or op.end_mask or op.ellipsis_mask or op.new_axis_mask:
        raise constant_folding.Unknown
    dims, count = _dims(op.input_), len(_numbers(op.begin))
    return _dtype(op.input_), [None for axis in range(count) if not op.shrink_axis_mask >> axis & 1] + dims[count:]


def _counted(op: Any) -> Any:
    given = [value for value in (op.start, op.limit, op.delta) if value is not None]
    return op.dtype or _dtype(*given), [None]


def _spaced(op: Any) -> Any:
    return _dtype(op.start, op.stop, "float32"), [constant_folding.partly(op.num)]


def _hot(op: Any) -> Any:
    dims = _dims(op.indices)
    dims.insert(len(dims) if op.axis in (None, -1) else op.axis, constant_folding.partly(op.depth))
    given = op.on_value if op.on_value is not None else op.off_value
    return op.dtype or (np.float32 if given is None else _dtype(given)), dims


def _masked(op: Any) -> Any:
    return op.dtype, [*_dims(op.lengths), None if op.maxlen is None else constant_folding.partly(op.maxlen)]


def _eye(op: Any) -> Any:
    rows = constant_folding.partly(op.num_rows)
    columns = rows if op.num_columns is None else constant_folding.partly(op.num_columns)
    return op.dtype, [*([] if op.batch_shape is None else _numbers(op.batch_shape)), rows, columns]


def _bilinear(op: Any) -> Any:
    return _dtype(op.images, "float32"), _nearest(op)[1]


def _nearest(op: Any) -> Any:
    *above, _height, _width, channels = _dims(op.images)
    size = [None, None] if getattr(op, "preserve_aspect_ratio", False) else _numbers(op.size)
    return _dtype(op.images), [*above, *size, channels]


def _largest(op: Any) -> Any:
    return _dtype(op.input), [*_dims(op.input)[:-1], constant_folding.partly(op.k)]


def _drawn(op: Any) -> Any:
    if hasattr(op, "shape"):
        return _filled(op)
    if not hasattr(op, "size"):
        raise constant_folding.Unknown
    pairs = zip(_numbers(op.size), _dims(op.value), strict=True)
    return _dtype(op.value), [whole if wanted == -1 else wanted for wanted, whole in pairs]


_RULES: dict[str, Callable[[Any], Any]] = {
    "BroadcastTo": lambda op: (_dtype(op.input), _numbers(op.shape)),
    "Fill": lambda op: (_dtype(op.value), _numbers(op.dims)),
    "LinSpace": _spaced,
    "Pad": _padded,
    "Reshape": lambda op: (_dtype(op.tensor), _numbers(op.shape)),
    "ResizeBilinear": _bilinear,
    "ResizeNearestNeighbor": _nearest,
    "ScatterNd": lambda op: (_dtype(op.updates), _numbers(op.shape)),
    "SequenceMask": _masked,
    "Slice": _sliced,
    "StridedSlice": _strided,
    "Tile": _tiled,
    "TopKV2": _largest,
    "eye": _eye,
    "one_hot": _hot,
    "ones": _filled,
    "random": _drawn,
    "range": _counted,
    "resize": lambda op: (_nearest if op.method == 1 else _bilinear)(op),
    "strided_slice": _window,
    "zeros": _filled,
}
