"""Structures around tensors, operations and names: lists, tuples, dicts and classes with fields, nested."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import call, itemgetter
from typing import Any

from hookline.graph.graph import Graph, Operation, Tensor


def fields_of(value: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns the fields of a dataclass or attrs object, and its static fields.

    A field is static if its metadata say so: `static=True`, as in JAX and Equinox, or `pytree_node=False`, as in Flax.

    Returns:
        (fields, static fields) by name, in order; `None` for an object of another class.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Step:
        ...     loss: float
        ...     name: str = dataclasses.field(default="adam", metadata={"static": True})
        >>> fields_of(Step(0.5))
        ({'loss': 0.5}, {'name': 'adam'})
    """
    kind = type(value)
    declared: Any = getattr(kind, "__attrs_attrs__", None)
    if declared is None:
        if not dataclasses.is_dataclass(kind):
            return None
        declared = dataclasses.fields(kind)
    fields: dict[str, Any] = {}
    static: dict[str, Any] = {}
    for field in declared:
        stays = field.metadata.get("static", False) or not field.metadata.get("pytree_node", True)
        (static if stays else fields)[field.name] = getattr(value, field.name)
    return fields, static


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Returns the parts of a structure by index or name; `None` for any other value."""
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return value
    fields = fields_of(value)
    return None if fields is None else fields[0]


def with_fields(form: Any, fields: Mapping[str, Any]) -> Any:
    """Returns a copy of an object with other values in its fields, frozen or not; its constructor is not called."""
    made = copy.copy(form)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


Assemble = Callable[[Sequence[Any]], Any]

called: Any = call
"""`map(called, functions, repeat(value))` calls each function, with no Python frame in between.

A comprehension would be one call more. That matters in a run with hooks: it is so rare that each call is slow.
"""

# The classes of operations met so far: checking what a fetch is takes longer than anything else here.
_OWN_KEYS: set[type] = {str}


def fetch_key(fetches: Any) -> Hashable:
    """Returns the cache key of fetches, quickly; it is equal for structures of the same form and elements."""
    if type(fetches) in _OWN_KEYS:
        return fetches
    if isinstance(fetches, Tensor):
        # Each `t["loss"]` is a new object for the same value.
        return fetches.key if fetches.path else fetches
    if isinstance(fetches, tuple | list):
        return (type(fetches), *[fetch_key(item) for item in fetches])
    if isinstance(fetches, dict):
        return (type(fetches), *fetches, *[fetch_key(item) for item in fetches.values()])
    if isinstance(fetches, Operation | str):
        _OWN_KEYS.add(type(fetches))
        return fetches
    parts = fields_of(fetches)
    if parts is None:
        raise TypeError(_cannot(fetches, f"It is of type {type(fetches).__name__}."))
    fields, static = parts
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            reason = f"Its field {name!r} is static, and so must be hashable, but is of type {type(value).__name__}."
            raise TypeError(_cannot(fetches, reason)) from None
    return (type(fetches), *static.values(), *[fetch_key(item) for item in fields.values()])


def check_fetches(who: str, **given: Any) -> None:
    """Raises `TypeError` unless each argument is `None` or can be fetched, from any graph.

    Example:
        >>> check_fetches("Scaffold", init_op=3)
        Traceback (most recent call last):
        ...
        TypeError: Scaffold requires an operation, a tensor or a name (or None) as init_op, got 3.
    """
    for name, value in given.items():
        try:
            fetch_key(() if value is None else value)
        except TypeError:
            raise TypeError(
                f"{who} requires an operation, a tensor or a name (or None) as {name}, got {value!r}."
            ) from None


def flatten(graph: Graph, fetches: Any) -> tuple[list[Tensor | Operation], Assemble]:
    """Returns the elements of a fetch structure and a function that puts their values into the same structure.

    Raises:
        TypeError: An element is not a tensor, an operation or a name.
        ValueError: An element belongs to another graph, or names nothing in this one.
    """
    elements: list[Tensor | Operation] = []

    def place_of(leaf: Any) -> int:
        try:
            elements.append(graph.as_graph_element(leaf))
        except (TypeError, KeyError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(_cannot(leaf, error.args[0])) from None
        return len(elements) - 1

    return elements, _assembly(fetches, place_of)


def leaves(fetches: Any) -> Iterator[Any]:
    """Yields the elements of a fetch structure in order; none for `None`, which fetches nothing."""
    parts = None if _is_element(fetches) else parts_of(fetches)
    if parts is not None:
        for item in parts.values():
            yield from leaves(item)
    elif fetches is not None:
        yield fetches


def mapped(fetches: Any, value_of: Callable[[Any], Any]) -> Any:
    """Returns a fetch structure with `value_of(element)` in place of each element."""
    values: list[Any] = []

    def place_of(leaf: Any) -> int:
        values.append(value_of(leaf))
        return len(values) - 1

    return _assembly(fetches, place_of)(values)


def _is_element(fetches: Any) -> bool:
    return isinstance(fetches, Tensor | Operation | str)


def _assembly(fetches: Any, place_of: Callable[[Any], int]) -> Assemble:
    """Returns a function that puts values into a structure like `fetches`; `place_of` gives a leaf's index."""
    if isinstance(fetches, list | tuple):
        parts = [_assembly(item, place_of) for item in fetches]
        make: Any = getattr(type(fetches), "_make", type(fetches))
        if len(parts) == 1:  # Like the next line, but faster.
            (only,) = parts
            return lambda values: make([only(values)])
        return lambda values: make([*map(called, parts, repeat(values))])
    if isinstance(fetches, dict):
        named = {key: _assembly(item, place_of) for key, item in fetches.items()}
        if type(fetches) is dict:
            if len(named) == 1:
                ((name, only),) = named.items()
                return lambda values: {name: only(values)}
            return lambda values: dict(zip(named, map(called, named.values(), repeat(values)), strict=True))
        return functools.partial(_fill, copy.copy(fetches), named)
    fields = None if _is_element(fetches) else fields_of(fetches)
    if fields is not None:
        named = {name: _assembly(item, place_of) for name, item in fields[0].items()}
        form = copy.copy(fetches)
        return lambda values: with_fields(form, {name: part(values) for name, part in named.items()})
    return itemgetter(place_of(fetches))


def _fill(form: dict[Any, Any], parts: dict[Any, Assemble], values: Sequence[Any]) -> dict[Any, Any]:
    """Returns a copy of `form`, which may be of any subclass of `dict`, with its values replaced."""
    filled = copy.copy(form)
    for key, part in parts.items():
        filled[key] = part(values)
    return filled


def _cannot(fetches: Any, reason: str) -> str:
    return (
        f"{fetches!r} cannot be fetched. {reason} Fetch tensors, operations, variables or their names, nested in "
        f"lists, tuples, dicts, dataclasses and attrs classes."
    )
