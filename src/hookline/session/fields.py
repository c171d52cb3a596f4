"""Dataclasses and attrs classes as structures: taken apart by field, and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any


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
