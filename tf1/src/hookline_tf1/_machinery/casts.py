"""Casts with TensorFlow's values on a CPU: integers wrap, and so do floats that a narrow dtype cannot hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import Tensor
from hookline.extend import contains_tensor, specs
from hookline_tf1._machinery import dtypes
from hookline_tf1._rules.tensor_shape import as_ints

# Floats: JAX accepts no Python integer that does not fit int32.
_LOWEST = -(2.0**31)


def cast(x: Any, dtype: Any) -> Any:
    """Casts an array or Python numbers to another dtype.

    XLA clips a float that the integer dtype cannot hold. TensorFlow casts with the processor's integers, which wrap:
    256.0 becomes 0 in uint8, and a number too large for int32 becomes the lowest int32.
    """
    if not hasattr(x, "dtype"):
        x = np.asarray(x)  # Python's integers may be larger than JAX's.
        with np.errstate(over="ignore"):
            x = jnp.asarray(x.astype(dtype) if x.dtype.kind in "iu" else x)
    x = jnp.asarray(x)
    is_cut = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer)
    if not is_cut or np.dtype(dtype).itemsize == 8:
        return x.astype(dtype)
    wide = x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    whole = jnp.where((wide >= _LOWEST) & (wide < -_LOWEST), wide, _LOWEST).astype(jnp.int32).astype(dtype)
    is_above = wide >= -_LOWEST
    return jnp.where(is_above, wide.astype(dtype), whole) if dtype == jnp.uint32 else whole


def cut(x: Any, dtype: Any) -> Any:
    """Prepares a value for a cast: casts 64-bit integers here, because no tensor holds them.

    Raises:
        ValueError: The new dtype has 64 bits, too, and JAX does not use 64 bits.
    """
    if isinstance(x, Tensor) or not isinstance(x, int | list | tuple | np.ndarray | np.generic) or contains_tensor(x):
        return x
    array = np.asarray(as_ints(x))
    if array.dtype.kind not in "iu" or not specs.describe_overflow(array, np.dtype(np.int32)):
        return x
    wanted = dtypes.as_dtype(dtype).dtype
    return dtypes.narrowed(array.astype(wanted), dtypes.canonical(wanted))


def cast_dims(x: Any, dtype: Any) -> Any:
    """Casts dimensions to another dtype; symbolic ones stay as they are."""
    is_symbolic = hasattr(x, "scope") or getattr(getattr(x, "dtype", None), "kind", "") == "O"
    return x if is_symbolic and np.issubdtype(dtype, np.integer) else np.asarray(x).astype(dtype)


def saturated(x: Any, dtype: Any) -> Any:
    """Casts an array and clips it to the range of the dtype."""
    x = jnp.asarray(x)
    low, high = (_nearest(limit, x.dtype) for limit in _limits(dtype))
    return cast(jnp.clip(x, low, high), dtype)


def _limits(dtype: Any) -> tuple[Any, Any]:
    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    return (float(info.min), float(info.max)) if jnp.issubdtype(dtype, jnp.floating) else (int(info.min), int(info.max))


def _nearest(limit: float, dtype: Any) -> Any:
    """Returns the number of a dtype that is nearest to a limit without exceeding it."""
    low, high = _limits(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(int(min(max(limit, low), high)), dtype)
    found = np.asarray(min(max(limit, low), high), dtype)
    return found if abs(float(found)) <= abs(limit) else np.nextafter(found, np.zeros_like(found))


def mean(x: Any, axis: Any, keepdims: bool) -> Any:
    """Computes the mean; of integers, truncated towards zero, without overflow of the sum."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    wide = x if x.dtype.itemsize >= 4 else x.astype(jnp.int32)
    total = jnp.sum(wide, axis=axis, keepdims=keepdims).astype(wide.dtype)
    count = x.size // max(total.size, 1)
    return _quotient_of_sum(wide, total, max(count, 1), axis, keepdims).astype(x.dtype)


# With more elements the sum of the remainders might overflow, too.
_MOST = 46340


def _quotient_of_sum(x: Any, total: Any, count: int, axis: Any, keepdims: bool) -> Any:
    if count > _MOST:
        return _divided(total, count)
    wholes = jnp.sum(_divided(x, count), axis=axis, keepdims=keepdims).astype(x.dtype)
    rests = jnp.sum(_rest(x, count), axis=axis, keepdims=keepdims).astype(x.dtype)
    whole, rest = wholes + _divided(rests, count), _rest(rests, count)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return whole
    return whole - ((whole > 0) & (rest < 0)) + ((whole < 0) & (rest > 0))


def _divided(x: Any, count: int) -> Any:
    return jax.lax.div(x, jnp.full_like(x, count))


def _rest(x: Any, count: int) -> Any:
    return jax.lax.rem(x, jnp.full_like(x, count))
