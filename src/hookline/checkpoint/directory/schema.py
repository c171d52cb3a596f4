"""Schemas of the small JSON files in a run's folder, which anybody may have written.

A schema is made of kinds. A kind takes a value as `json.loads` returns it, and gives the value that the field stands
for, or raises `Mismatch`, whose text names the field. Fields that a record does not name are ignored; fields that may
be missing get the default of the class.

Example:
    >>> point = record(dict, x=whole(at_least=0), y=lacking(optional(real())), tags=items(text()))
    >>> parse('{"x": 3, "tags": ["a"], "later": 1}', point)
    {'x': 3, 'tags': ('a',)}
    >>> parse('{"x": 3, "tags": ["a", 1]}', point)
    Traceback (most recent call last):
    ...
    hookline.checkpoint.directory.schema.Mismatch: tags[1] is 1, not a text
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
"""The largest whole number of a field, if its kind does not say another."""
_DEEPEST = 64
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_LONGEST_SHOWN = 60


class Mismatch(ValueError):
    """A field is not as its schema says."""

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why, place)
        self.why, self.place = why, place

    def inside(self, place: str) -> Mismatch:
        """Returns the same of a field further out."""
        return Mismatch(self.why, place + self.place)

    def __str__(self) -> str:
        return f"{self.place.removeprefix('.') or 'it'} {self.why}"


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of field.

    Attributes:
        what: It in words, for messages.
        types: The types that its value may have in JSON.
        among: The values that it may have, if these are few.
        bounds: The least and the largest number, or number of items.
        parts: The kind of each item; or, by name or index, that of each part.
        make: Makes what the field stands for, of the value or, by name, of its parts.
        may_be_missing: Whether an object may lack it.
        may_be_null: Whether it may be null.
    """

    what: str
    types: tuple[type, ...]
    among: tuple[Any, ...] | None = None
    bounds: tuple[float, float] | None = None
    parts: Kind[Any] | Mapping[Any, Kind[Any]] | None = None
    make: Callable[..., T] | None = None
    may_be_missing: bool = False
    may_be_null: bool = False

    def read(self, value: Any) -> Any:
        """Returns what a value stands for, a `T`; raises `Mismatch` if it is not of this kind."""
        if value is None and self.may_be_null:
            return None
        is_right = type(value) in self.types and (self.among is None or value in self.among)
        if is_right and self.bounds is not None:
            least, most = self.bounds
            size: Any = len(value) if type(value) is list else value
            is_right = least <= size <= most
        if not is_right:
            raise _mismatch(value, self.what)
        if self.parts is not None:
            return self._of_parts(value, self.parts)
        return value if self.make is None else self.make(value)

    def _of_parts(self, value: Any, parts: Kind[Any] | Mapping[Any, Kind[Any]]) -> Any:
        """Reads the parts of an object or a list."""
        names = range(len(value)) if type(value) is list else value
        kinds = dict.fromkeys(names, parts) if isinstance(parts, Kind) else parts
        found = {}
        for name, kind in kinds.items():
            try:
                if name in names:
                    found[name] = kind.read(value[name])
                elif not kind.may_be_missing:
                    raise Mismatch("is missing")
            except Mismatch as error:
                raise error.inside(f".{name}" if self.make else f"[{_shown(name)}]") from error.__cause__
        if self.make is not None:
            return self.make(**found)
        return tuple(found.values()) if type(value) is list else found


def parse(text: str, kind: Kind[T]) -> T:
    """Returns what a JSON text stands for; raises `Mismatch` if it is not of this kind."""
    return kind.read(values(text))


def values(text: str) -> Any:
    """Returns the values in a JSON text; raises `Mismatch` if it is none, or a deep one."""
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text))
    for _ in range(_DEEPEST):  # Each round takes the innermost ones away.
        before, brackets = brackets, brackets.replace("[]", "").replace("{}", "")
        if brackets == before:
            break
    # Python's parser would recurse into them, and the stack of a thread is not endless.
    else:
        raise Mismatch(f"has more than {_DEEPEST} levels")
    if brackets:
        raise Mismatch("is not JSON")
    try:
        return json.loads(text)
    except ValueError as error:  # Also for numbers of very many digits.
        raise Mismatch("is not JSON") from error


def record(make: Callable[..., T], /, **fields: Kind[Any]) -> Kind[T]:
    """An object with these fields, which are the arguments of `make`."""
    return Kind("an object", (dict,), parts=fields, make=make)


def lacking(kind: Kind[T]) -> Kind[T]:
    """A field that may be missing."""
    return dataclasses.replace(kind, may_be_missing=True)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """A field that may be null."""
    found: Any = dataclasses.replace(kind, may_be_null=True)
    return found


def items(kind: Kind[T], at_most: float = math.inf, at_least: int = 0) -> Kind[tuple[T, ...]]:
    """A list, which becomes a tuple."""
    least = f" of {at_least} items or more" if at_least else ""
    most = f" of at most {at_most} items" if at_most < math.inf else ""
    return Kind(f"a list{least or most}", (list,), bounds=(at_least, at_most), parts=kind)


def pair(first: Kind[T], second: Kind[U]) -> Kind[tuple[T, U]]:
    """A list of two, which becomes a tuple."""
    return Kind("a list of 2 items", (list,), bounds=(2, 2), parts={0: first, 1: second})


def table(kind: Kind[T]) -> Kind[dict[str, T]]:
    """An object with any names."""
    return Kind("an object", (dict,), parts=kind)


def text() -> Kind[str]:
    """A text."""
    return Kind("a text", (str,))


def one_of(*texts: str) -> Kind[str]:
    """One of some texts."""
    return Kind(f"one of {', '.join(texts)}", (str,), among=texts)


def path() -> Kind[str]:
    """The path of a file, as the system's functions take it here."""
    return Kind("a path", (str,), make=_path)


def boolean() -> Kind[bool]:
    """True or false."""
    return Kind("true or false", (bool,))


def whole(at_least: int = -LARGEST, at_most: int = LARGEST) -> Kind[int]:
    """A whole number."""
    return Kind(f"a whole number from {at_least} to {at_most}", (int,), bounds=(at_least, at_most))


def real(at_least: float = -math.inf, at_most: float = math.inf) -> Kind[float]:
    """A finite number."""
    what = "a number" + (f" from {at_least:g}" if at_least > -math.inf else "")
    bounds = max(at_least, LARGEST * -1.0), min(at_most, LARGEST * 1.0)
    return Kind(what, (int, float), bounds=bounds, make=float)


def anything() -> Kind[Any]:
    """Any value."""
    return Kind("any value", (str, bool, int, float, list, dict, type(None)))


def _path(value: str) -> str:
    try:
        found = os.fsdecode(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        found = ""
    if not found or "\0" in found:
        raise _mismatch(value, "a path")
    return found


def _mismatch(value: Any, what: str) -> Mismatch:
    return Mismatch(f"is {_shown(value)}, not {what}")


def _shown(value: Any) -> str:
    """Returns a value for a message: briefly."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]!r}..."
    if type(value) is int and abs(value) > LARGEST:
        return "a number of more than 18 digits"
    if isinstance(value, list | dict):
        return f"a list of {len(value):,} items" if isinstance(value, list) else "an object"
    return repr(value) if isinstance(value, str) else json.dumps(value)
