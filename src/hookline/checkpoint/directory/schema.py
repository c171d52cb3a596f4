"""Schemas of the small JSON files in a run's folder, which anybody may have written.

A schema converts a value from `json.loads` to the value of the field, or raises `SchemaError`, whose text names the
field. Fields that a record does not name are ignored; fields that may be missing get the default of the class.

Example:
    >>> point = record(dict, x=integer(at_least=0), y=not_required(nullable(number())), tags=list_of(string()))
    >>> parse('{"x": 3, "tags": ["a"], "later": 1}', point)
    {'x': 3, 'tags': ('a',)}
    >>> parse('{"x": 3, "tags": ["a", 1]}', point)
    Traceback (most recent call last):
    ...
    hookline.checkpoint.directory.schema.SchemaError: tags[1] is 1, not a string
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

LARGEST = 2**63 - 1
"""The largest integer of a field, unless its schema has another limit."""
_MAX_DEPTH = 64
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_MAX_SHOWN_CHARS = 60


class SchemaError(ValueError):
    """A field does not match its schema."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why, path)
        self.reason, self.field_path = why, path

    def within(self, path: str) -> SchemaError:
        """Returns the same error, with the path of an enclosing field in front."""
        return SchemaError(self.reason, path + self.field_path)

    def __str__(self) -> str:
        return f"{self.field_path.removeprefix('.') or 'it'} {self.reason}"


@dataclasses.dataclass(frozen=True)
class Schema(Generic[T]):
    """The schema of one field.

    Attributes:
        what: The field's type in words, for messages.
        types: The allowed types of the JSON value.
        among: The allowed values, if they are few.
        bounds: The smallest and the largest number, or number of items.
        parts: One schema for all items; or a schema for each part, by name or index.
        make: Converts the JSON value, or the parts as keyword arguments, to the value of the field.
        may_be_missing: Whether an object may lack the field.
        may_be_null: Whether the field may be null.
    """

    what: str
    types: tuple[type, ...]
    among: tuple[Any, ...] | None = None
    bounds: tuple[float, float] | None = None
    parts: Schema[Any] | Mapping[Any, Schema[Any]] | None = None
    make: Callable[..., T] | None = None
    may_be_missing: bool = False
    may_be_null: bool = False

    def read(self, value: Any) -> Any:
        """Converts a JSON value to a `T`; raises `SchemaError` if it does not match."""
        if value is None and self.may_be_null:
            return None
        is_right = type(value) in self.types and (self.among is None or value in self.among)
        if is_right and self.bounds is not None:
            least, most = self.bounds
            size: Any = len(value) if type(value) is list else value
            is_right = least <= size <= most
        if not is_right:
            raise _type_error(value, self.what)
        if self.parts is not None:
            return self._of_parts(value, self.parts)
        return value if self.make is None else self.make(value)

    def _of_parts(self, value: Any, parts: Schema[Any] | Mapping[Any, Schema[Any]]) -> Any:
        """Reads the parts of an object or a list."""
        names = range(len(value)) if type(value) is list else value
        kinds = dict.fromkeys(names, parts) if isinstance(parts, Schema) else parts
        found = {}
        for name, kind in kinds.items():
            try:
                if name in names:
                    found[name] = kind.read(value[name])
                elif not kind.may_be_missing:
                    raise SchemaError("is missing")
            except SchemaError as error:
                raise error.within(f".{name}" if self.make else f"[{_format_value(name)}]") from error.__cause__
        if self.make is not None:
            return self.make(**found)
        return tuple(found.values()) if type(value) is list else found


def parse(text: str, kind: Schema[T]) -> T:
    """Parses and converts a JSON text; raises `SchemaError` if it does not match."""
    return kind.read(load_json(text))


def load_json(text: str) -> Any:
    """Parses a JSON text; raises `SchemaError` if it is not JSON, or nested too deeply."""
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text))
    for _ in range(_MAX_DEPTH):  # Each round removes the innermost brackets.
        before, brackets = brackets, brackets.replace("[]", "").replace("{}", "")
        if brackets == before:
            break
    # Python's parser would recurse into them, and the stack of a thread is limited.
    else:
        raise SchemaError(f"has more than {_MAX_DEPTH} levels")
    if brackets:
        raise SchemaError("is not JSON")
    try:
        return json.loads(text)
    except ValueError as error:  # Also for numbers with very many digits.
        raise SchemaError("is not JSON") from error


def record(make: Callable[..., T], /, **fields: Schema[Any]) -> Schema[T]:
    """Returns the schema of an object with these fields, which become the arguments of `make`."""
    return Schema("an object", (dict,), parts=fields, make=make)


def not_required(kind: Schema[T]) -> Schema[T]:
    """Returns the schema of a field that may be missing."""
    return dataclasses.replace(kind, may_be_missing=True)


def nullable(kind: Schema[T]) -> Schema[T | None]:
    """Returns the schema of a field that may be null."""
    found: Any = dataclasses.replace(kind, may_be_null=True)
    return found


def list_of(kind: Schema[T], at_most: float = math.inf, at_least: int = 0) -> Schema[tuple[T, ...]]:
    """Returns the schema of a list, which becomes a tuple."""
    least = f" of {at_least} items or more" if at_least else ""
    most = f" of at most {at_most} items" if at_most < math.inf else ""
    return Schema(f"a list{least or most}", (list,), bounds=(at_least, at_most), parts=kind)


def pair(first: Schema[T], second: Schema[U]) -> Schema[tuple[T, U]]:
    """Returns the schema of a list of two items, which becomes a tuple."""
    return Schema("a list of 2 items", (list,), bounds=(2, 2), parts={0: first, 1: second})


def dict_of(kind: Schema[T]) -> Schema[dict[str, T]]:
    """Returns the schema of an object with any names."""
    return Schema("an object", (dict,), parts=kind)


def string() -> Schema[str]:
    """Returns the schema of a string."""
    return Schema("a string", (str,))


def one_of(*texts: str) -> Schema[str]:
    """Returns the schema of a string that is one of these."""
    return Schema(f"one of {', '.join(texts)}", (str,), among=texts)


def path() -> Schema[str]:
    """Returns the schema of a file's path, in this system's encoding."""
    return Schema("a path", (str,), make=_path)


def boolean() -> Schema[bool]:
    """Returns the schema of true or false."""
    return Schema("true or false", (bool,))


def integer(at_least: int = -LARGEST, at_most: int = LARGEST) -> Schema[int]:
    """Returns the schema of an integer."""
    return Schema(f"an integer from {at_least} to {at_most}", (int,), bounds=(at_least, at_most))


def number(at_least: float = -math.inf, at_most: float = math.inf) -> Schema[float]:
    """Returns the schema of a finite number."""
    what = "a number" + (f" from {at_least:g}" if at_least > -math.inf else "")
    bounds = max(at_least, LARGEST * -1.0), min(at_most, LARGEST * 1.0)
    return Schema(what, (int, float), bounds=bounds, make=float)


def anything() -> Schema[Any]:
    """Returns the schema of any value."""
    return Schema("any value", (str, bool, int, float, list, dict, type(None)))


def _path(value: str) -> str:
    try:
        found = os.fsdecode(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        found = ""
    if not found or "\0" in found:
        raise _type_error(value, "a path")
    return found


def _type_error(value: Any, what: str) -> SchemaError:
    return SchemaError(f"is {_format_value(value)}, not {what}")


def _format_value(value: Any) -> str:
    """Formats a value briefly for a message."""
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"{value[:_MAX_SHOWN_CHARS]!r}..."
    if type(value) is int and abs(value) > LARGEST:
        return "a number of more than 18 digits"
    if isinstance(value, list | dict):
        return f"a list of {len(value):,} items" if isinstance(value, list) else "an object"
    return repr(value) if isinstance(value, str) else json.dumps(value)
