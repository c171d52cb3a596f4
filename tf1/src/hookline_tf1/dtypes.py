"""`tf.dtypes`."""

from __future__ import annotations

from hookline_tf1._machinery.dtypes import (  # noqa: F401
    DType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    double,
    float16,
    float16_ref,
    float32,
    float32_ref,
    float64,
    half,
    int8,
    int16,
    int32,
    int32_ref,
    int64,
    int64_ref,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from hookline_tf1._machinery.dtypes import bool_ as bool
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.math import cast, saturate_cast

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "cast",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "saturate_cast",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
__getattr__, __dir__ = offered("tf.dtypes", lambda: __all__)
