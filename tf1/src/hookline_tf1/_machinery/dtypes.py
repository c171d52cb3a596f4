"""Dtypes such as `tf.float32`, with the attributes that scripts read."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hookline.extend import specs


class DType:
    """The type of a tensor's elements. NumPy and JAX accept it as a dtype.

    Args:
        name: TensorFlow's name.
        dtype: The NumPy dtype.

    Example:
        >>> float32 == np.float32, float32.name, float32.as_numpy_dtype(3)
        (True, 'float32', np.float32(3.0))

    References:
        `tf.DType`.
    """

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: Any) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)

    @property
    def as_numpy_dtype(self) -> Any:
        """The type of a NumPy scalar."""
        return np.object_ if self.name == "string" else self.dtype.type

    @property
    def base_dtype(self) -> DType:
        """The dtype itself: there are no reference types."""
        return self

    real_dtype = base_dtype

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating point numbers."""
        return jnp.issubdtype(self.dtype, jnp.floating)

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers."""
        return jnp.issubdtype(self.dtype, jnp.integer)

    @property
    def is_bool(self) -> bool:
        """Whether it holds booleans."""
        return self.dtype == np.bool_

    @property
    def is_complex(self) -> bool:
        """Whether it holds complex numbers."""
        return jnp.issubdtype(self.dtype, jnp.complexfloating)

    @property
    def is_numpy_compatible(self) -> bool:
        """Whether NumPy has this dtype."""
        return True

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return 1 if self.name == "string" else self.dtype.itemsize

    @property
    def min(self) -> Any:
        """The smallest number it holds."""
        return jnp.finfo(self.dtype).min if self.is_floating else jnp.iinfo(self.dtype).min

    @property
    def max(self) -> Any:
        """The largest number it holds."""
        return jnp.finfo(self.dtype).max if self.is_floating else jnp.iinfo(self.dtype).max

    def is_compatible_with(self, other: Any) -> bool:
        """Whether it is the same dtype."""
        return self == other

    def __eq__(self, other: object) -> bool:
        try:
            found = as_dtype(other)
        except TypeError:
            return False
        return found.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: {self.name!r}>"


float16 = half = DType("float16", np.float16)
float32 = DType("float32", np.float32)
float64 = double = DType("float64", np.float64)
bfloat16 = DType("bfloat16", jnp.bfloat16)
int8 = DType("int8", np.int8)
int16 = DType("int16", np.int16)
int32 = DType("int32", np.int32)
int64 = DType("int64", np.int64)
uint8 = DType("uint8", np.uint8)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
uint64 = DType("uint64", np.uint64)
complex64 = DType("complex64", np.complex64)
complex128 = DType("complex128", np.complex128)
bool_ = DType("bool", np.bool_)
string = DType("string", object)

_BY_NAME = {dtype.name: dtype for dtype in tuple(globals().values()) if isinstance(dtype, DType)}


def as_dtype(type_value: Any) -> DType:
    """Converts a name, a NumPy dtype or a Python type to a dtype.

    References:
        `tf.as_dtype`. A Python float is a float32 and an int an int32, as for a constant.
    """
    if isinstance(type_value, DType):
        return type_value
    if isinstance(type_value, str) and type_value in _BY_NAME:
        return _BY_NAME[type_value]
    python = {float: "float32", int: "int32", bool: "bool", str: "string", object: "string"}
    name = python[type_value] if isinstance(type_value, type) and type_value in python else _numpy_name(type_value)
    if name not in _BY_NAME:
        raise TypeError(f"Cannot convert {type_value!r} to a dtype: use one such as tf.float32.")
    return _BY_NAME[name]


def _numpy_name(type_value: Any) -> str:
    try:
        found = np.dtype(type_value) if type_value is not None else None
    except TypeError:
        found = None
    if found is None:
        return ""
    return "string" if found.kind in "OSU" else found.name


def canonical(dtype: Any) -> Any:
    """Returns the NumPy dtype that JAX uses: 32 bits instead of 64 unless `jax_enable_x64` is set."""
    return specs.canonical_dtype(as_dtype(dtype).dtype)


def narrowed(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Casts an array to a dtype that JAX uses.

    Raises:
        ValueError: The dtype cannot hold a number of the array.
    """
    with np.errstate(over="ignore"):
        problem = specs.describe_overflow(array, dtype)
        if problem:
            raise ValueError(f"A constant {problem}. Set jax_enable_x64 before anything else for 64-bit numbers.")
        return array.astype(dtype)


# The reference types of variables and queues.
float16_ref, float32_ref, int32_ref, int64_ref = float16, float32, int32, int64

PUBLIC = {"DType": DType, "as_dtype": as_dtype, "double": double, "half": half, **_BY_NAME}
