"""Functions of tensors' shapes, and functions that move elements: `reshape`, `concat`, `gather`, `one_hot`."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import Tensor
from hookline.extend import specs
from hookline_tf1 import math
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.ignored_arguments import unknown
from hookline_tf1._machinery.nodes import argument, convert_to_tensor, node
from hookline_tf1._machinery.op_definitions import Computed, Listed, Plain, Static, Unused, computed_by, ops_in
from hookline_tf1._rules import host_strings, index_bounds
from hookline_tf1._rules.constant_folding import dims_array
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._rules.static_arguments import Rank, Shape
from hookline_tf1._tf import array_kernels as moved

TopK = collections.namedtuple("TopKV2", ["values", "indices"])


def parts(tensor: Any, _: Any) -> Any:
    """Returns the tensors of a list."""
    return list(tensor)


def _split_parts(tensor: Any, args: Any) -> Any:
    given = args["num_or_size_splits"]
    return [tensor[i] for i in range(len(given) if isinstance(given, list | tuple) else int(given))]


def _unstacked(tensor: Any, args: Any) -> Any:
    parts = getattr(tensor, "spec", None)
    if args["num"] is not None and isinstance(parts, list) and len(parts) != args["num"]:
        raise ValueError(f"tf.unstack: num={args['num']} parts are requested, but there are {len(parts)}.")
    return list(tensor) if args["num"] is None else [tensor[i] for i in range(args["num"])]


def _same(x: Any) -> Any:
    return x


def _cast_dims(x: Any, *_: Any) -> Any:
    return x


def _along_axis(params: Any, indices: Any, axis: Any, batch_dims: Any) -> Any:
    return index_bounds.shape(params)[axis or batch_dims]


def _along_first(params: Any, indices: Any, batch_dims: Any) -> Any:
    return _first_dims(index_bounds.shape(params)[batch_dims:], indices)


def _along_last(params: Any, indices: Any) -> Any:
    return index_bounds.shape(params)[len(index_bounds.shape(indices)) - 1]


def _first_dims(dims: Any, indices: Any) -> Any:
    """Returns the sizes of the dimensions that the last dimension of the indices indexes."""
    return np.asarray(dims[: index_bounds.shape(indices)[-1]], np.int32)


def _up_to_all(input: Any, seq_axis: Any, seq_dim: Any, **_: Any) -> Any:
    return index_bounds.shape(input)[seq_dim if seq_axis is None else seq_axis] + 1


@computed_by(_same, twin=_cast_dims)
def identity(input: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x: jax.tree.map(jax.lax.stop_gradient, x), twin=_cast_dims)
def stop_gradient(input: Any, name: str | None = None) -> Any: ...


@computed_by(jax.lax.stop_gradient)
def prevent_gradient(input: Any, message: Unused = "", name: str | None = None) -> Any: ...


@computed_by(moved.reshaped, twin=lambda x, shape: np.reshape(x, np.asarray(shape).tolist()))
def reshape(tensor: Any, shape: Static, name: str | None = None) -> Any: ...


@computed_by(
    lambda x, axis: jnp.expand_dims(x, axis), earlier={"dim": "axis"}, twin=lambda x, axis: np.expand_dims(x, int(axis))
)
def expand_dims(input: Any, axis: Static = None, name: str | None = None) -> Any: ...


@computed_by(
    moved.squeezed,
    earlier={"squeeze_dims": "axis"},
    twin=lambda x, axis: np.squeeze(x, None if axis is None else tuple(np.ravel(axis))),
)
def squeeze(input: Any, axis: Static = None, name: str | None = None) -> Any: ...


@computed_by(moved.transposed, "transpose")
def transpose(a: Any, perm: Static = None, name: str | None = "transpose", conjugate: Plain = False) -> Any: ...


@computed_by(moved.stacked, "stack", twin=moved.stacked_dims)
def stack(values: Listed, axis: Static = 0, name: str | None = "stack") -> Any: ...


@computed_by(moved.unstacked, "unstack", result=_unstacked)
def unstack(value: Any, num: Static = None, axis: Static = 0, name: str | None = "unstack") -> Any: ...


@computed_by(moved.split, "split", result=_split_parts)
def _split(
    value: Any, num_or_size_splits: Static, axis: Static = 0, num: Unused = None, name: str | None = "split"
) -> Any: ...


@computed_by(moved.sliced, twin=moved.sliced_dims, within=(Within("begin", moved.last_starts),))
def slice(input_: Any, begin: Computed, size: Static, name: str | None = None) -> Any: ...


@computed_by(moved.strided, twin=moved.strided)
def strided_slice(
    input_: Any,
    begin: Static,
    end: Static,
    strides: Static = None,
    begin_mask: Plain = 0,
    end_mask: Plain = 0,
    ellipsis_mask: Plain = 0,
    new_axis_mask: Plain = 0,
    shrink_axis_mask: Plain = 0,
    var: Unused = None,
    name: str | None = None,
) -> Any: ...


@computed_by(moved.tiled)
def tile(input: Any, multiples: Static, name: str | None = None) -> Any: ...


@computed_by(moved.padded)
def pad(
    tensor: Any, paddings: Static, mode: Plain = "CONSTANT", name: str | None = None, constant_values: Plain = 0
) -> Any: ...


@computed_by(moved.flipped, "ReverseV2")
def reverse(tensor: Any, axis: Static, name: str | None = None) -> Any: ...


@computed_by(moved.flipped)
def reverse_v2(tensor: Any, axis: Static, name: str | None = None) -> Any: ...


@computed_by(moved.reverse_sequence, within=(Within("seq_lengths", _up_to_all),))
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: Static = None,
    batch_axis: Static = None,
    name: str | None = None,
    seq_dim: Static = None,
    batch_dim: Static = None,
) -> Any: ...


@computed_by(moved.gathered, "GatherV2", twin=moved.gathered_dims, within=(Within("indices", _along_axis),))
def gather(
    params: Any,
    indices: Any,
    validate_indices: Unused = None,
    name: str | None = None,
    axis: Static = None,
    batch_dims: Plain = 0,
) -> Any: ...


@computed_by(moved.gather_nd, within=(Within("indices", _along_first),))
def gather_nd(params: Any, indices: Any, name: str | None = None, batch_dims: Plain = 0) -> Any: ...


@computed_by(lambda p, i: moved.gathered(p, i, jnp.ndim(i) - 1, 1), within=(Within("indices", _along_last),))
def batch_gather(params: Any, indices: Any, name: str | None = None) -> Any: ...


@computed_by(
    moved.scatter_nd,
    within=(Within("indices", lambda indices, updates, shape: _first_dims(moved.dims(shape), indices)),),
)
def scatter_nd(indices: Any, updates: Any, shape: Static, name: str | None = None) -> Any: ...


@computed_by(moved.where, "Select")
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any: ...


@computed_by(moved.one_hot, "one_hot")
def one_hot(
    indices: Any,
    depth: Static,
    on_value: Any = None,
    off_value: Any = None,
    axis: Static = None,
    dtype: Plain = None,
    name: str | None = None,
) -> Any: ...


@computed_by(moved.sequence_mask)
def sequence_mask(lengths: Any, maxlen: Static = None, dtype: Plain = dtypes.bool_, name: str | None = None) -> Any: ...


@computed_by(lambda shape, value: jnp.full(moved.dims(shape), jnp.asarray(value)))
def fill(dims: Static, value: Any, name: str | None = None) -> Any: ...


@computed_by(moved.filled(0), "zeros")
def zeros(shape: Static, dtype: Plain = dtypes.float32, name: str | None = None) -> Any: ...


@computed_by(moved.filled(1), "ones")
def ones(shape: Static, dtype: Plain = dtypes.float32, name: str | None = None) -> Any: ...


@computed_by(moved.like(0), "zeros_like")
def zeros_like(tensor: Any, dtype: Plain = None, name: str | None = None, optimize: Unused = True) -> Any: ...


@computed_by(moved.like(1), "ones_like")
def ones_like(tensor: Any, dtype: Plain = None, name: str | None = None, optimize: Unused = True) -> Any: ...


@computed_by(moved.eye, "eye")
def eye(
    num_rows: Static,
    num_columns: Static = None,
    batch_shape: Static = None,
    dtype: Plain = dtypes.float32,
    name: str | None = None,
) -> Any: ...


@computed_by(moved.diag)
def diag(diagonal: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x: jnp.diagonal(x))
def diag_part(input: Any, name: str | None = None) -> Any: ...


@computed_by(moved.matrix_diag)
def matrix_diag(diagonal: Any, name: str | None = None) -> Any: ...


@computed_by(moved.band)
def matrix_band_part(input: Any, num_lower: Static, num_upper: Static, name: str | None = None) -> Any: ...


@computed_by(lambda a: jnp.swapaxes(a, -1, -2), "matrix_transpose")
def matrix_transpose(a: Any, name: str | None = "matrix_transpose") -> Any: ...


@computed_by(lambda x, shape: jnp.broadcast_to(x, moved.dims(shape)))
def broadcast_to(input: Any, shape: Static, name: str | None = None) -> Any: ...


@computed_by(moved.to_depth)
def space_to_depth(input: Any, block_size: Static, name: str | None = None, data_format: Plain = "NHWC") -> Any: ...


@computed_by(moved.to_space)
def depth_to_space(input: Any, block_size: Static, name: str | None = None, data_format: Plain = "NHWC") -> Any: ...


@computed_by(lambda row, values, side: jnp.searchsorted(row, values, side=side))
def searchsorted(sorted_sequence: Any, values: Any, side: Plain = "left", name: str | None = None) -> Any: ...


@computed_by(moved.norm, "norm", earlier={"keep_dims": "keepdims"})
def norm(
    tensor: Any, ord: Static = "euclidean", axis: Static = None, keepdims: Plain = None, name: str | None = None
) -> Any: ...


@computed_by(lambda equation, inputs: jnp.einsum(equation, *inputs), "einsum")
def _einsum(equation: Plain, inputs: Listed, name: str | None = None) -> Any: ...


def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Any:
    """`tf.einsum`."""
    name = kwargs.pop("name", None)
    unknown("tf.einsum", kwargs, "optimize")
    return _einsum(equation, list(inputs[0] if isinstance(inputs[0], list) else inputs), name=name)


def split(value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None, name: str = "split") -> Any:
    """`tf.split`; before TF 1.0 the axis came first and the tensor last."""
    if isinstance(value, int):
        value, axis = axis, value
    return _split(value, num_or_size_splits, axis, num, name)


def concat(values: Any, axis: Any, name: str = "concat") -> Any:
    """`tf.concat`; before TF 1.0 the axis came first."""
    if isinstance(values, int):
        values, axis = axis, values
    values = values if isinstance(values, list | tuple) else [values]
    given = {"values": [argument(value) for value in values], "axis": axis}
    return node(_joined, name or "concat", given, static=("axis",), twin=_joined_dims)


def _joined(values: Any, axis: Any) -> Any:
    return jnp.concatenate([jnp.asarray(value) for value in values], axis=axis)


def _joined_dims(values: Any, axis: Any) -> Any:
    return np.concatenate([np.asarray(value) for value in values], axis=int(axis))


def shape(input: Any, name: str | None = None, out_type: Any = dtypes.int32, optimize: bool = True) -> Any:
    """`tf.shape`: known when a program is compiled, so it may be an argument that XLA must know."""
    found = _of_shape(lambda dims: dims_array(dims), name or "Shape", input, _rank_spec)
    return _counted_in(out_type, found)


def shape_n(input: Any, out_type: Any = dtypes.int32, name: str | None = None) -> Any:
    """`tf.shape_n`."""
    return [shape(item, name or "ShapeN", out_type) for item in input]


def size(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Any:
    """`tf.size`."""
    return _counted_in(out_type, math.reduce_prod(shape(input), name=name or "Size"))


def rank(input: Any, name: str | None = None) -> Any:
    """`tf.rank`."""
    return _of_shape(lambda dims: np.asarray(len(dims), np.int32), name or "Rank", input, lambda input: _INT, Rank)


def _counted_in(out_type: Any, found: Any) -> Any:
    """Casts integers to another width, if JAX has it."""
    return found if dtypes.canonical(out_type) == np.int32 else math.cast(found, out_type)


def _of_shape(of: Any, name: str, input: Any, spec: Any, kind: type[Shape] = Shape) -> Any:
    get_default_graph()
    tensor = convert_to_tensor(input)
    if host_strings.is_text(tensor):
        return host_strings.of_text(lambda input: of(np.shape(input)), name, {"input": tensor})
    return kind(lambda input: of(jnp.shape(input)), name, {"input": tensor}, spec=spec).output


_INT = jax.ShapeDtypeStruct((), np.int32)


def _rank_spec(input: Tensor) -> Any:
    dims = getattr(input.spec, "shape", None)
    return specs.UNKNOWN if dims is None else jax.ShapeDtypeStruct((len(dims),), np.int32)


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> Any:
    """`tf.nn.top_k`: always sorted."""
    given = {"input": argument(input), "k": k}
    found = node(lambda input, k: jax.lax.top_k(input, k), name or "TopKV2", given, static=("k",))
    return TopK(found[0], found[1])


def meshgrid(*args: Any, **kwargs: Any) -> Any:
    """`tf.meshgrid`."""
    indexing, name = kwargs.pop("indexing", "xy"), kwargs.pop("name", None)
    if kwargs:
        raise TypeError(f"tf.meshgrid got an unexpected keyword argument {sorted(kwargs)[0]!r}.")
    given = {"values": [argument(value) for value in args]}
    made = node(lambda values: jnp.meshgrid(*values, indexing=indexing), name or "meshgrid", given)
    return [made[i] for i in range(len(args))]


def boolean_mask(tensor: Any, mask: Any, name: str | None = None, axis: Any = None) -> Any:
    """Is refused: the length of its result depends on the data, and XLA must know lengths."""
    raise NotImplementedError(
        "tf.boolean_mask is not available: its result is as long as the mask has true elements, but XLA must know "
        "lengths. Multiply by the mask, or use tf.where(mask, x, y)."
    )


newaxis = None

PUBLIC = [
    *ops_in(globals()),
    "einsum",
    "split",
    "boolean_mask",
    "newaxis",
    "concat",
    "meshgrid",
    "rank",
    "shape",
    "shape_n",
    "size",
]
