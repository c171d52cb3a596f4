"""Parses and formats numbers like TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline_tf1._machinery import dtypes


def number(text: bytes, dtype: dtypes.DType) -> Any:
    """Parses a number; ignores surrounding spaces.

    Raises:
        ValueError: The text is not a number of that dtype, or JAX's dtype cannot hold it.
    """
    plain = text.strip().decode("utf-8", "replace")
    if "_" in plain or not plain:
        raise ValueError("no number")
    if dtype.is_floating:
        is_hexadecimal = plain.lower().lstrip("+-").startswith("0x")
        return float.fromhex(plain) if is_hexadecimal else float(plain)
    found, held = int(plain), dtypes.canonical(dtype)
    if not dtype.min <= found <= dtype.max:
        raise ValueError("out of range")
    if not np.iinfo(held).min <= found <= np.iinfo(held).max:
        raise ValueError(f"no {held}, which JAX has for {dtype.name}; set jax_enable_x64 for 64 bits")
    return found


def formatted(value: Any, precision: int, scientific: bool, shortest: bool, width: int, fill: str) -> bytes:
    """Formats a number like C's `printf`."""
    if isinstance(value, np.bool_ | bool):
        return b"true" if value else b"false"
    flags = f"{fill}{width}" if width > -1 else ""
    if isinstance(value, np.integer | int):
        return f"%{flags}d".encode() % int(value)
    kind = "e" if scientific else "g" if shortest else "f"
    digits = f".{precision}" if precision > -1 else ""
    return (f"%{flags}{digits}{kind}" % float(value)).encode()
