"""States of iterators and loaders: reading and setting them, and storing them in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Accessors(NamedTuple):
    """How to read and set the state of an iterator or loader."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def accessors(item: Any) -> Accessors | None:
    """Returns how to read and set the state of `item`, if it has one."""
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if callable(getattr(item, get, None)) and callable(getattr(item, put, None)):
            return Accessors(getattr(item, get), getattr(item, put))
    return None


def encoded(state: Any, who: str) -> Any:
    """Returns a state as a checkpoint can store it: bytes, JSON if that is enough, else the pytree itself."""
    if isinstance(state, bytes):
        return {"bytes": state}
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return {"json": text}
    except (TypeError, ValueError):
        pass
    try:
        jax.tree.structure(state).serialize_using_proto()
    except ValueError as error:
        raise TypeError(
            f"{who}: a checkpoint cannot hold the state of its source, a {type(state).__name__}: {error} "
            f"Give bytes, or dicts with text as keys, lists and tuples of numbers, text, bytes and arrays."
        ) from None
    return {"tree": state}


def decoded(state: Any) -> Any:
    """Returns a state from the result of `encoded`."""
    ((kind, value),) = state.items()
    return json.loads(value) if kind == "json" else value
