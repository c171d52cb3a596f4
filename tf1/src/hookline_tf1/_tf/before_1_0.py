"""The names of `tf` before TensorFlow 1.0 that scripts still use."""

from __future__ import annotations

from typing import Any

from hookline_tf1 import dtypes, math, summary
from hookline_tf1._tf import array_ops, variables


def batch_matmul(x: Any, y: Any, adj_x: bool = False, adj_y: bool = False, name: str | None = None) -> Any:
    """`tf.batch_matmul`: products of the matrices in the last two dimensions."""
    return math.matmul(x, y, adjoint_a=adj_x, adjoint_b=adj_y, name=name or "BatchMatMul")


def arg_max(input: Any, dimension: int, output_type: Any = dtypes.int64, name: str | None = None) -> Any:
    """`tf.arg_max`: the indices of the largest values along a dimension."""
    return math.argmax(input, dimension, name=name, output_type=output_type)


def arg_min(input: Any, dimension: int, output_type: Any = dtypes.int64, name: str | None = None) -> Any:
    """`tf.arg_min`: the indices of the smallest values along a dimension."""
    return math.argmin(input, dimension, name=name, output_type=output_type)


all_variables = variables.global_variables
audio_summary = summary.audio_summary
complex_abs = math.abs
concat_v2 = array_ops.concat
histogram_summary = summary.histogram_summary
image_summary = summary.image_summary
initialize_all_tables = variables.tables_initializer
initialize_all_variables = variables.global_variables_initializer
initialize_local_variables = variables.local_variables_initializer
initialize_variables = variables.variables_initializer
inv = math.reciprocal
merge_all_summaries = summary.merge_all
merge_summary = summary.merge
mul = math.multiply
neg = math.negative
pack = array_ops.stack
scalar_summary = summary.scalar_summary
select = array_ops.where
sub = math.subtract
unpack = array_ops.unstack

__all__ = [
    "all_variables",
    "arg_max",
    "arg_min",
    "audio_summary",
    "batch_matmul",
    "complex_abs",
    "concat_v2",
    "histogram_summary",
    "image_summary",
    "initialize_all_tables",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "inv",
    "merge_all_summaries",
    "merge_summary",
    "mul",
    "neg",
    "pack",
    "scalar_summary",
    "select",
    "sub",
    "unpack",
]
