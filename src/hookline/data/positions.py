"""Positions of several processes as one: each process has its own position in its part of the data."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import jax
import numpy as np

from hookline.data.sequences import START


def joined(positions: list[str]) -> dict[str, Any]:
    """Joins the positions of all processes, each given as text, to one."""
    return {"count": decoded(positions[0])["count"], "of": positions}


def own(position: dict[str, Any], process: int, count: int) -> dict[str, Any]:
    """Returns the position of one of `count` processes; a position of another number of processes cannot be used."""
    texts = position.get("of", [None])
    if not position["count"] and len(texts) != count:
        return START
    return decoded(texts[process]) if len(texts) == count else {"count": position["count"], "of": texts}


def encoded(position: dict[str, Any]) -> str:
    """Encodes a position as text.

    Raises:
        TypeError: It holds values other than dicts with text keys, lists, tuples, numbers, text, bytes and arrays.
    """
    return json.dumps(_written(position))


def decoded(text: str) -> dict[str, Any]:
    """Decodes a position from the result of `encoded`."""
    return _read(json.loads(text))


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[key, _written(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_written(part) for part in value]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        held = io.BytesIO()
        np.save(held, np.asarray(value), allow_pickle=False)
        return {"array": base64.b64encode(held.getvalue()).decode()}
    raise TypeError(f"A position cannot be sent to other processes, because it contains a {type(value).__name__}.")


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "dict":
        return {key: _read(part) for key, part in held}
    if kind == "array":
        return np.load(io.BytesIO(base64.b64decode(held)), allow_pickle=False)
    return [_read(part) for part in held] if kind == "list" else tuple([_read(part) for part in held])
