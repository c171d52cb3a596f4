"""Fetch structures: any nesting of lists, tuples, named tuples and dicts around tensors, operations and names."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from hookline.graph.graph import Graph, Operation, Tensor

Assemble = Callable[[Sequence[Any]], Any]


def fetch_key(fetches: Any) -> Hashable:
    """Returns what two fetch structures of the same form and elements have in common, quickly."""
    if isinstance(fetches, Tensor):
        # Each `t["loss"]` is a new object for the same value.
        return fetches.key if fetches.path else fetches
    if isinstance(fetches, tuple | list):
        return (type(fetches), *[fetch_key(item) for item in fetches])
    if isinstance(fetches, dict):
        return (type(fetches), *fetches, *[fetch_key(item) for item in fetches.values()])
    if isinstance(fetches, Operation | str):
        return fetches
    raise TypeError(_cannot(fetches, f"It is of type {type(fetches).__name__}."))


def flatten(graph: Graph, fetches: Any) -> tuple[list[Tensor | Operation], Assemble]:
    """Returns the elements of a fetch structure and a function that puts their values into the same structure.

    Raises:
        TypeError: An element is no tensor, operation or name.
        ValueError: It belongs to another graph, or is a name of nothing in this one.
    """
    elements: list[Tensor | Operation] = []
    assemble = _collect(graph, fetches, elements)
    return elements, assemble


def _collect(graph: Graph, fetches: Any, elements: list[Tensor | Operation]) -> Assemble:
    if isinstance(fetches, list | tuple):
        parts = [_collect(graph, item, elements) for item in fetches]
        kind = type(fetches)
        if kind is list or kind is tuple:
            return lambda values: kind([part(values) for part in parts])
        make: Any = getattr(kind, "_make", kind)
        return lambda values: make([part(values) for part in parts])
    if isinstance(fetches, dict):
        named = {key: _collect(graph, item, elements) for key, item in fetches.items()}
        return functools.partial(_fill, copy.copy(fetches), named)
    try:
        element = graph.as_graph_element(fetches)
    except (TypeError, KeyError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_cannot(fetches, error.args[0])) from None
    place = len(elements)
    elements.append(element)
    return lambda values: values[place]


def _fill(form: dict[Any, Any], parts: dict[Any, Assemble], values: Sequence[Any]) -> dict[Any, Any]:
    """Returns a copy of `form`, which may be of any subclass of `dict`, with its values replaced."""
    filled = copy.copy(form)
    for key, part in parts.items():
        filled[key] = part(values)
    return filled


def _cannot(fetches: Any, reason: str) -> str:
    return (
        f"{fetches!r} cannot be fetched. {reason} Fetch tensors, operations, variables or their names, nested in "
        f"lists, tuples and dicts."
    )
