"""Fetch structures: any nesting of lists, tuples, named tuples and dicts around tensors, operations and names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from hookline.graph.graph import Graph
from hookline.graph.tensor import Operation, Tensor

Assemble = Callable[[Sequence[Any]], Any]


def fetch_key(fetches: Any) -> Hashable:
    """Returns what two fetch structures of the same form and elements have in common, quickly."""
    kind = type(fetches)
    if kind is tuple or kind is list:
        return (kind, *[fetch_key(item) for item in fetches])
    if kind is dict:
        return (kind, *fetches, *[fetch_key(item) for item in fetches.values()])
    if isinstance(fetches, tuple):
        return (kind, *[fetch_key(item) for item in fetches])
    return fetches if isinstance(fetches, Tensor | Operation | str) else (kind, id(fetches))


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
        return lambda values: {key: part(values) for key, part in named.items()}
    try:
        element = graph.as_graph_element(fetches)
    except TypeError as error:
        raise TypeError(
            f"Fetches may be nested in lists, tuples and dicts; {fetches!r} cannot be fetched. {error}"
        ) from None
    except KeyError as error:
        raise ValueError(f"{fetches!r} cannot be fetched. {error.args[0]}") from None
    except ValueError as error:
        raise ValueError(f"{fetches!r} cannot be fetched. {error}") from None
    place = len(elements)
    elements.append(element)
    return lambda values: values[place]
