"""Values as JSON can hold them, so that two systems can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns a value, however deep, in lists, dicts, strings and numbers. Bytes are text here."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return plain(np.asarray(value).tolist())
    raise TypeError(f"A record holds plain values and arrays, got {value!r}.")
