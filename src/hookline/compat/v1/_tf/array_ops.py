"""Shapes of tensors, and functions that move their elements: `reshape`, `concat`, `gather`, `one_hot`."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.compat.v1 import math
from hookline.compat.v1._machinery import dtypes
from hookline.compat.v1._machinery.graphs import get_default_graph
from hookline.compat.v1._machinery.ignored_arguments import unknown
from hookline.compat.v1._machinery.nodes import argument, convert_to_tensor, node
from hookline.compat.v1._machinery.op_table import functions, row
from hookline.compat.v1._rules import host_strings, index_bounds
from hookline.compat.v1._rules.constant_folding import dims_array
from hookline.compat.v1._rules.index_bounds import Within
from hookline.compat.v1._rules.static_arguments import Rank, Shape
from hookline.compat.v1._tf import array_kernels as moved
from hookline.graph import Tensor
from hookline.graph import spec as specs

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
        raise ValueError(f"tf.unstack: num={args['num']} parts are wanted, but there are {len(parts)}.")
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
    """Returns the dimensions into which the last one of the indices leads."""
    return np.asarray(dims[: index_bounds.shape(indices)[-1]], np.int32)


def _up_to_all(input: Any, seq_axis: Any, seq_dim: Any, **_: Any) -> Any:
    return index_bounds.shape(input)[seq_dim if seq_axis is None else seq_axis] + 1


TABLE = [
    row("identity", "input, name=None", _same, twin=_cast_dims),
    row("stop_gradient", "input, name=None", lambda x: jax.tree.map(jax.lax.stop_gradient, x), twin=_cast_dims),
    row("prevent_gradient", "input, ~message='', name=None", jax.lax.stop_gradient),
    row("reshape", "tensor, @shape, name=None", moved.reshaped,
        twin=lambda x, shape: np.reshape(x, np.asarray(shape).tolist())),
    row("expand_dims", "input, @axis=None, name=None; dim=axis", lambda x, axis: jnp.expand_dims(x, axis),
        twin=lambda x, axis: np.expand_dims(x, int(axis))),
    row("squeeze", "input, @axis=None, name=None; squeeze_dims=axis", moved.squeezed,
        twin=lambda x, axis: np.squeeze(x, None if axis is None else tuple(np.ravel(axis)))),
    row("transpose", "a, @perm=None, name='transpose', -conjugate=False", moved.transposed, "transpose"),
    row("stack", "*values, @axis=0, name='stack'", moved.stacked, "stack", twin=moved.stacked_dims),
    row("unstack", "value, @num=None, @axis=0, name='unstack'", moved.unstacked, "unstack", result=_unstacked),
    row("split", "value, @num_or_size_splits, @axis=0, ~num=None, name='split'", moved.split, "split",
        result=_split_parts),
    row("slice", "input_, ?begin, @size, name=None", moved.sliced, "Slice",
        twin=moved.sliced_dims, within=(Within("begin", moved.last_starts),)),
    row("strided_slice", "input_, @begin, @end, @strides=None, -begin_mask=0, -end_mask=0, -ellipsis_mask=0, "
        "-new_axis_mask=0, -shrink_axis_mask=0, ~var=None, name=None",
        moved.strided, "StridedSlice", twin=moved.strided),
    row("tile", "input, @multiples, name=None", moved.tiled),
    row("pad", "tensor, @paddings, -mode='CONSTANT', name=None, -constant_values=0", moved.padded),
    row("reverse", "tensor, @axis, name=None", moved.flipped, "ReverseV2"),
    row("reverse_v2", "tensor, @axis, name=None", moved.flipped, "ReverseV2"),
    row("reverse_sequence", "input, seq_lengths, @seq_axis=None, @batch_axis=None, name=None, @seq_dim=None, "
        "@batch_dim=None", moved.reverse_sequence, within=(Within("seq_lengths", _up_to_all),)),
    row("gather", "params, indices, ~validate_indices=None, name=None, @axis=None, -batch_dims=0", moved.gathered,
        "GatherV2", twin=moved.gathered_dims, within=(Within("indices", _along_axis),)),
    row("gather_nd", "params, indices, name=None, -batch_dims=0", moved.gather_nd,
        within=(Within("indices", _along_first),)),
    row("batch_gather", "params, indices, name=None", lambda p, i: moved.gathered(p, i, jnp.ndim(i) - 1, 1),
        within=(Within("indices", _along_last),)),
    row("scatter_nd", "indices, updates, @shape, name=None", moved.scatter_nd,
        within=(Within("indices", lambda indices, updates, shape: _first_dims(moved.dims(shape), indices)),)),
    row("where", "condition, x=None, y=None, name=None", moved.where, "Select"),
    row("one_hot", "indices, @depth, on_value=None, off_value=None, @axis=None, -dtype=None, name=None",
        moved.one_hot, "one_hot"),
    row("sequence_mask", "lengths, @maxlen=None, -dtype=bool, name=None", moved.sequence_mask, "SequenceMask"),
    row("fill", "@dims, value, name=None", lambda shape, value: jnp.full(moved.dims(shape), jnp.asarray(value))),
    row("zeros", "@shape, -dtype=float32, name=None", moved.filled(0), "zeros"),
    row("ones", "@shape, -dtype=float32, name=None", moved.filled(1), "ones"),
    row("zeros_like", "tensor, -dtype=None, name=None, ~optimize=True", moved.like(0), "zeros_like"),
    row("ones_like", "tensor, -dtype=None, name=None, ~optimize=True", moved.like(1), "ones_like"),
    row("eye", "@num_rows, @num_columns=None, @batch_shape=None, -dtype=float32, name=None", moved.eye, "eye"),
    row("diag", "diagonal, name=None", moved.diag),
    row("matrix_diag", "diagonal, name=None", moved.matrix_diag),
    row("matrix_band_part", "input, @num_lower, @num_upper, name=None", moved.band),
    row("matrix_transpose", "a, name='matrix_transpose'", lambda a: jnp.swapaxes(a, -1, -2), "matrix_transpose"),
    row("broadcast_to", "input, @shape, name=None", lambda x, shape: jnp.broadcast_to(x, moved.dims(shape))),
    row("space_to_depth", "input, @block_size, name=None, -data_format='NHWC'", moved.to_depth),
    row("depth_to_space", "input, @block_size, name=None, -data_format='NHWC'", moved.to_space),
    row("searchsorted", "sorted_sequence, values, -side='left', name=None",
        lambda row, values, side: jnp.searchsorted(row, values, side=side)),
    row("norm", "tensor, @ord='euclidean', @axis=None, -keepdims=None, name=None; keep_dims=keepdims",
        moved.norm, "norm"),
    row("einsum", "-equation, *inputs, name=None", lambda equation, inputs: jnp.einsum(equation, *inputs), "einsum"),
]  # fmt: skip

FUNCTIONS = functions(TABLE)
globals().update(FUNCTIONS)


def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Any:
    """`tf.einsum`."""
    name = kwargs.pop("name", None)
    unknown("tf.einsum", kwargs, "optimize")
    return FUNCTIONS["einsum"](equation, list(inputs[0] if isinstance(inputs[0], list) else inputs), name=name)


def split(value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None, name: str = "split") -> Any:
    """`tf.split`; before TF 1.0 the axis came first and the tensor last."""
    if isinstance(value, int):
        value, axis = axis, value
    return FUNCTIONS["split"](value, num_or_size_splits, axis, num, name)


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
    """`tf.shape`: known when a program is compiled, so it may be used wherever XLA must know a number."""
    found = _of_shape(lambda dims: dims_array(dims), name or "Shape", input, _rank_spec)
    return _counted_in(out_type, found)


def shape_n(input: Any, out_type: Any = dtypes.int32, name: str | None = None) -> Any:
    """`tf.shape_n`."""
    return [shape(item, name or "ShapeN", out_type) for item in input]


def size(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Any:
    """`tf.size`."""
    return _counted_in(out_type, math.FUNCTIONS["reduce_prod"](shape(input), name=name or "Size"))


def rank(input: Any, name: str | None = None) -> Any:
    """`tf.rank`."""
    return _of_shape(lambda dims: np.asarray(len(dims), np.int32), name or "Rank", input, lambda input: _INT, Rank)


def _counted_in(out_type: Any, found: Any) -> Any:
    """Returns whole numbers of another width, where JAX has it."""
    return found if dtypes.canonical(out_type) == np.int32 else math.FUNCTIONS["cast"](found, out_type)


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
    """`tf.nn.top_k`: sorted, also where that is not asked for."""
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
    """Is refused: the length of its result is that of the data, and XLA must know lengths."""
    raise NotImplementedError(
        "tf.boolean_mask is not available: its result is as long as the mask has true elements, but XLA must know "
        "lengths. Multiply by the mask, or use tf.where(mask, x, y)."
    )


newaxis = None

PUBLIC = [
    *FUNCTIONS,
    "boolean_mask",
    "newaxis",
    "concat",
    "meshgrid",
    "rank",
    "shape",
    "shape_n",
    "size",
]
