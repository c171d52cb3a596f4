"""All functions of `jax.numpy` on tensors: `hookline.numpy.mean(x)` is `hookline.op(jax.numpy.mean)(x)`.

Names are looked up on use, so the functions are those of the installed JAX, including `linalg` and `fft`. Constants and
dtypes (`pi`, `float32`) are passed through. With plain values the functions just run.

Example:
    >>> import hookline as hl
    >>> import hookline.numpy as hnp
    >>> x = hl.constant([[3.0, 4.0]])
    >>> with hl.Session() as sess:
    ...     print(sess.run(hnp.linalg.norm(x)), sess.run(hnp.concatenate([x, x], axis=1)))
    5.0 [[3. 4. 3. 4.]]
"""

from __future__ import annotations

import types
from typing import Any

import jax.numpy as _jnp

from hookline.graph import op as _op


class _Namespace:
    """A part of `jax.numpy`, such as `linalg`, with functions that take tensors."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = _wrap(self._module, name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return _public_names(self._module)


def _wrap(module: types.ModuleType, name: str) -> Any:
    value = getattr(module, name)
    if isinstance(value, types.ModuleType):
        return _Namespace(value)
    # Dtypes are callable too, but they are types.
    is_dtype = isinstance(value, type) or hasattr(value, "dtype")
    return _op(value, name=name) if callable(value) and not is_dtype else value


def _public_names(module: types.ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not hasattr(_jnp, name):
        raise AttributeError(f"jax.numpy has no {name!r}, so neither has hookline.numpy.")
    found = globals()[name] = _wrap(_jnp, name)
    return found


def __dir__() -> list[str]:
    return _public_names(_jnp)
