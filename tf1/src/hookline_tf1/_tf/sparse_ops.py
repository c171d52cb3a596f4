"""Sparse tensors, for rows of different lengths, and functions that make them: `tf.string_split`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hookline import Tensor
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.nodes import convert_to_tensor, node
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.host_strings import STRING, OnHost, encoded, is_text, known_shape
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._tf.array_kernels import dims


class SparseTensorValue(NamedTuple):
    """The values and indices of a sparse array.

    Attributes:
        indices: The indices of the values, a row for each.
        values: The values.
        dense_shape: The shape of the dense array.

    References:
        `tf.SparseTensorValue`.
    """

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor(SparseTensorValue):
    """The tensors of a sparse array. It may be fetched.

    References:
        `tf.SparseTensor`. Only `tf.sparse_tensor_to_dense` takes one.
    """

    __slots__ = ()

    def __new__(cls, indices: Any, values: Any, dense_shape: Any) -> SparseTensor:
        """Converts the parts to tensors."""
        return super().__new__(cls, *map(convert_to_tensor, (indices, values, dense_shape)))

    @property
    def dtype(self) -> Any:
        """The dtype of its values."""
        return self.values.dtype


def string_split(
    source: Any = None, delimiter: Any = " ", skip_empty: bool = True, sep: Any = None, name: str | None = None
) -> SparseTensor:
    """`tf.string_split`: each character of `delimiter` ends a word; without one each character is a word.

    Args:
        source: A vector of strings.
        delimiter: As above.
        skip_empty: Whether to drop empty words.
        sep: Another name for `delimiter`.
        name: Name of the operation.

    Returns:
        A sparse tensor with a row for each string.
    """
    ends = (delimiter if sep is None else sep).encode()
    return _split(source, lambda text: _words(text, ends, skip_empty), name or "StringSplit")


def strings_split(
    input: Any = None, sep: str | None = None, maxsplit: int = -1, result_type: str = "SparseTensor",
    source: Any = None, name: str | None = None,
) -> SparseTensor:  # fmt: skip
    """`tf.strings.split`: words between spaces, or between `sep`."""
    if result_type != "SparseTensor":
        raise NotImplementedError("tf.strings.split: only result_type='SparseTensor' is available.")
    between = sep.encode() if sep else None
    given = input if source is None else source
    return _split(given, lambda text: text.split(between, maxsplit), name or "StringSplitV2")


def _words(text: bytes, ends: bytes, skip_empty: bool) -> list[bytes]:
    if not ends:
        found = [text[i : i + 1] for i in range(len(text))]
    else:
        found = text.translate(bytes.maketrans(ends, ends[:1] * len(ends))).split(ends[:1])
    return [word for word in found if word] if skip_empty else found


def _split(source: Any, split: Any, name: str) -> SparseTensor:
    texts = convert_to_tensor(source)
    if known_shape(texts) is not None and len(known_shape(texts) or ()) != 1:
        raise ValueError(f"{name}: a vector of strings is required, got the shape {known_shape(texts)}.")
    rows = OnHost(lambda texts: [split(text) for text in texts], name, {"texts": texts}, None, []).output
    whole = np.dtype(dtypes.canonical(dtypes.int64))

    def part(fn: Any, dtype: Any, shape: Any) -> Tensor:
        return OnHost(fn, name, {"rows": rows}, dtype, shape).output

    return SparseTensor(
        part(lambda rows: np.reshape([(i, j) for i, row in enumerate(rows) for j in range(len(row))], (-1, 2)),
             whole, [None, 2]),
        part(lambda rows: np.array([word for row in rows for word in row], object), STRING, [None]),
        part(lambda rows: [len(rows), max(map(len, rows), default=0)], whole, [2]),
    )  # fmt: skip


def _lengths(size: Any, **_: Any) -> Any:
    lengths = np.ravel(size).astype(np.int32)
    return lengths[0] if len(lengths) == 1 else lengths  # The index in a vector may be one number.


_INSIDE = (Within("sparse_indices", _lengths, picked=lambda args: args["indices"]),)


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Any:
    """`tf.sparse_to_dense`: `sparse_indices` has a row or a number for each value, or is one number."""
    values = convert_to_tensor(sparse_values)
    given = {"indices": convert_to_tensor(sparse_indices), "size": output_shape, "values": values}
    if is_text(values) or isinstance(given["indices"].op, OnHost):
        size = convert_to_tensor(output_shape)
        rank = (known_shape(size) or (None,))[0]
        dtype = STRING if is_text(values) else dtypes.canonical(values.dtype)
        filler = encoded(default_value)[()] if is_text(values) else default_value

        def filled(indices: Any, size: Any, values: Any) -> Any:
            return _scattered(np.full(np.ravel(size), filler, values.dtype), indices, values)

        shape = None if rank is None else [None] * rank
        name, given = name or "SparseToDense", given | {"size": size}
        return OnHost(index_bounds.on_host(filled, name, _INSIDE), name, given, dtype, shape).output

    def scattered(indices: Any, size: Any, values: Any) -> Any:
        empty = jnp.full(dims(size), default_value, values.dtype)
        indices = jnp.asarray(indices).reshape(-1, empty.ndim)
        return empty.at[tuple(indices.T)].set(values)

    return node(scattered, name or "SparseToDense", given, static=("size",), within=_INSIDE)


def _scattered(whole: Any, indices: Any, values: Any) -> Any:
    whole[tuple(np.reshape(indices, (-1, whole.ndim)).T)] = values
    return whole


def sparse_tensor_to_dense(
    sp_input: SparseTensor, default_value: Any = None, validate_indices: bool = True, name: str | None = None
) -> Any:
    """`tf.sparse_tensor_to_dense`: the dense array, by default filled up with zeros or empty strings."""
    empty = "" if is_text(sp_input.values) else 0
    filler = empty if default_value is None else default_value
    return sparse_to_dense(sp_input.indices, sp_input.dense_shape, sp_input.values, filler, validate_indices, name)


PUBLIC = {
    "SparseTensor": SparseTensor,
    "SparseTensorValue": SparseTensorValue,
    "sparse_tensor_to_dense": sparse_tensor_to_dense,
    "sparse_to_dense": sparse_to_dense,
    "string_split": string_split,
}
