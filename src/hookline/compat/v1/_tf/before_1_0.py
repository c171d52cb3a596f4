"""The names that stood in `tf` before TensorFlow 1.0, and still stand in scripts."""

from __future__ import annotations

from typing import Any

from hookline.compat.v1 import math, summary
from hookline.compat.v1._tf import array_ops, variables


def batch_matmul(x: Any, y: Any, adj_x: bool = False, adj_y: bool = False, name: str | None = None) -> Any:
    """`tf.batch_matmul`: products of matrices, in the last two dimensions."""
    return math.FUNCTIONS["matmul"](x, y, adjoint_a=adj_x, adjoint_b=adj_y, name=name or "BatchMatMul")


PUBLIC = {
    "all_variables": variables.global_variables,
    "arg_max": math.FUNCTIONS["argmax"],
    "arg_min": math.FUNCTIONS["argmin"],
    "audio_summary": summary.audio_summary,
    "batch_matmul": batch_matmul,
    "complex_abs": math.FUNCTIONS["abs"],
    "concat_v2": array_ops.concat,
    "histogram_summary": summary.histogram_summary,
    "image_summary": summary.image_summary,
    "initialize_all_tables": variables.tables_initializer,
    "initialize_all_variables": variables.global_variables_initializer,
    "initialize_local_variables": variables.local_variables_initializer,
    "initialize_variables": variables.variables_initializer,
    "inv": math.FUNCTIONS["reciprocal"],
    "merge_all_summaries": summary.merge_all,
    "merge_summary": summary.merge,
    "mul": math.FUNCTIONS["multiply"],
    "neg": math.FUNCTIONS["negative"],
    "pack": array_ops.FUNCTIONS["stack"],
    "scalar_summary": summary.scalar_summary,
    "select": array_ops.FUNCTIONS["where"],
    "sub": math.FUNCTIONS["subtract"],
    "unpack": array_ops.FUNCTIONS["unstack"],
}
