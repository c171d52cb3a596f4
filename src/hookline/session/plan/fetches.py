"""Fetch structures: tensors, operations and names in nested lists, tuples, dicts and classes with fields."""

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


def replace_fields(template: Any, fields: Mapping[str, Any]) -> Any:
    """Returns a copy of an object with other values in its fields, frozen or not; its constructor is not called."""
    made = copy.copy(template)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


Assembler = Callable[[Sequence[Any]], Any]

call_with: Any = call
"""`map(call_with, functions, repeat(value))` calls each function, with no Python frame in between.

A comprehension would be one call more. That matters in a run with hooks: it is so rare that each call is slow.
"""

# The classes of operations met so far: the check of a fetch's class takes longer than anything else here.
_OPERATION_CLASSES: set[type] = {str}


def fetch_key(fetches: Any) -> Hashable:
    """Returns the cache key of fetches, quickly; it is equal for structures of the same form and elements."""
    if type(fetches) in _OPERATION_CLASSES:
        return fetches
    if isinstance(fetches, Tensor):
        # Each `t["loss"]` is a new object for the same value.
        return fetches.key if fetches.path else fetches
    if isinstance(fetches, tuple | list):
        return (type(fetches), *[fetch_key(item) for item in fetches])
    if isinstance(fetches, dict):
        return (type(fetches), *fetches, *[fetch_key(item) for item in fetches.values()])
    if isinstance(fetches, Operation | str):
        _OPERATION_CLASSES.add(type(fetches))
        return fetches
    parts = fields_of(fetches)
    if parts is None:
        raise TypeError(_fetch_error_text(fetches, f"It is of type {type(fetches).__name__}."))
    fields, static = parts
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            reason = f"Its field {name!r} is static, and so must be hashable, but is of type {type(value).__name__}."
            raise TypeError(_fetch_error_text(fetches, reason)) from None
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


def flatten_fetches(graph: Graph, fetches: Any) -> tuple[list[Tensor | Operation], Assembler]:
    """Returns the elements of a fetch structure and a function that puts their values into the same structure.

    Raises:
        TypeError: An element is not a tensor, an operation or a name.
        ValueError: An element belongs to another graph, or names nothing in this one.
    """
    elements: list[Tensor | Operation] = []

    def index_of(leaf: Any) -> int:
        try:
            elements.append(graph.as_graph_element(leaf))
        except (TypeError, KeyError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(_fetch_error_text(leaf, error.args[0])) from None
        return len(elements) - 1

    return elements, _make_assembler(fetches, index_of)


def iter_fetches(fetches: Any) -> Iterator[Any]:
    """Yields the elements of a fetch structure in order; nothing for `None`."""
    parts = None if _is_element(fetches) else parts_of(fetches)
    if parts is not None:
        for item in parts.values():
            yield from iter_fetches(item)
    elif fetches is not None:
        yield fetches


def map_fetches(fetches: Any, value_of: Callable[[Any], Any]) -> Any:
    """Returns a fetch structure with `value_of(element)` in place of each element."""
    values: list[Any] = []

    def index_of(leaf: Any) -> int:
        values.append(value_of(leaf))
        return len(values) - 1

    return _make_assembler(fetches, index_of)(values)


def _is_element(fetches: Any) -> bool:
    return isinstance(fetches, Tensor | Operation | str)


def _make_assembler(fetches: Any, index_of: Callable[[Any], int]) -> Assembler:
    """Returns a function that puts values into a structure like `fetches`; `index_of` gives a leaf's index."""
    if isinstance(fetches, list | tuple):
        parts = [_make_assembler(item, index_of) for item in fetches]
        make: Any = getattr(type(fetches), "_make", type(fetches))
        if len(parts) == 1:  # Like the next line, but faster.
            (only,) = parts
            return lambda values: make([only(values)])
        return lambda values: make([*map(call_with, parts, repeat(values))])
    if isinstance(fetches, dict):
        named = {key: _make_assembler(item, index_of) for key, item in fetches.items()}
        if type(fetches) is dict:
            if len(named) == 1:
                ((name, only),) = named.items()
                return lambda values: {name: only(values)}
            return lambda values: dict(zip(named, map(call_with, named.values(), repeat(values)), strict=True))
        return functools.partial(_fill, copy.copy(fetches), named)
    fields = None if _is_element(fetches) else fields_of(fetches)
    if fields is not None:
        named = {name: _make_assembler(item, index_of) for name, item in fields[0].items()}
        form = copy.copy(fetches)
        return lambda values: replace_fields(form, {name: part(values) for name, part in named.items()})
    return itemgetter(index_of(fetches))


def _fill(template: dict[Any, Any], parts: dict[Any, Assembler], values: Sequence[Any]) -> dict[Any, Any]:
    """Returns a copy of `template`, which may be of any subclass of `dict`, with its values replaced."""
    filled = copy.copy(template)
    for key, part in parts.items():
        filled[key] = part(values)
    return filled


def _fetch_error_text(fetches: Any, reason: str) -> str:
    return (
        f"{fetches!r} cannot be fetched. {reason} Fetch tensors, operations, variables or their names, nested in "
        f"lists, tuples, dicts, dataclasses and attrs classes."
    )
