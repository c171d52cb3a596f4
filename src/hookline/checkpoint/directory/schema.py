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
from collections.abc import Callable, Iterable, Sequence
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
    """One kind of field; `read` raises `Mismatch`."""

    read: Callable[[Any], T]
    may_be_missing: bool = False


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

    def read(value: Any) -> T:
        given, found = _required(value, dict, "an object"), {}
        for name, kind in fields.items():
            if name not in given:
                if kind.may_be_missing:
                    continue
                raise Mismatch("is missing", f".{name}")
            try:
                found[name] = kind.read(given[name])
            except Mismatch as error:
                raise error.inside(f".{name}") from error.__cause__
        return make(**found)

    return Kind(read)


def lacking(kind: Kind[T]) -> Kind[T]:
    """A field that may be missing."""
    return dataclasses.replace(kind, may_be_missing=True)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """A field that may be null."""
    return Kind(lambda value: None if value is None else kind.read(value))


def items(kind: Kind[T], at_most: int | None = None, at_least: int = 0) -> Kind[tuple[T, ...]]:
    """A list, which becomes a tuple."""

    def read(value: Any) -> tuple[T, ...]:
        given = _required(value, list, "a list")
        if len(given) < at_least:
            raise Mismatch(f"has {len(given):,} items, fewer than {at_least}")
        if at_most is not None and len(given) > at_most:
            raise Mismatch(f"has {len(given):,} items, more than {at_most}")
        return tuple(_each(kind, enumerate(given)).values())

    return Kind(read)


def pair(first: Kind[T], second: Kind[U]) -> Kind[tuple[T, U]]:
    """A list of two, which becomes a tuple."""

    def read(value: Any) -> tuple[T, U]:
        given = _required(value, list, "a list")
        if len(given) != 2:
            raise Mismatch(f"has {len(given):,} items, not 2")
        return first.read(given[0]), second.read(given[1])

    return Kind(read)


def table(kind: Kind[T]) -> Kind[dict[str, T]]:
    """An object with any names."""
    return Kind(lambda value: _each(kind, _required(value, dict, "an object").items()))


def _each(kind: Kind[T], pairs: Iterable[tuple[Any, Any]]) -> dict[Any, T]:
    found = {}
    for key, value in pairs:
        try:
            found[key] = kind.read(value)
        except Mismatch as error:
            raise error.inside(f"[{_shown(key)}]") from error.__cause__
    return found


def text() -> Kind[str]:
    """A text."""
    return _single("a text", str)


def one_of(*texts: str) -> Kind[str]:
    """One of some texts."""
    return _single(f"one of {', '.join(texts)}", str, among=texts)


def path() -> Kind[str]:
    """The path of a file, as the system's functions take it here."""

    def read(value: Any) -> str:
        try:
            found = os.fsdecode(_required(value, str, "a path").encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            found = ""
        if not found or "\0" in found:
            raise _mismatch(value, "a path")
        return found

    return Kind(read)


def boolean() -> Kind[bool]:
    """True or false."""
    return _single("true or false", bool)


def whole(at_least: int = -LARGEST, at_most: int = LARGEST) -> Kind[int]:
    """A whole number."""
    return _single(f"a whole number from {at_least} to {at_most}", int, at_least=at_least, at_most=at_most)


def real(at_least: float = -math.inf, at_most: float = math.inf) -> Kind[float]:
    """A finite number."""
    what = "a number" + (f" from {at_least:g}" if at_least > -math.inf else "")
    bounds = max(at_least, LARGEST * -1.0), min(at_most, LARGEST * 1.0)
    return _single(what, int, float, at_least=bounds[0], at_most=bounds[1], convert=float)


def anything() -> Kind[Any]:
    """Any value."""
    return _single("any value", str, bool, int, float, list, dict, type(None))


def _single(
    what: str,
    *types: type,
    among: Sequence[Any] | None = None,
    at_least: float | None = None,
    at_most: float = math.inf,
    convert: Callable[[Any], Any] | None = None,
) -> Kind[Any]:
    def read(value: Any) -> Any:
        is_right = type(value) in types and (among is None or value in among)
        if not is_right or (at_least is not None and not at_least <= value <= at_most):
            raise _mismatch(value, what)
        return value if convert is None else convert(value)

    return Kind(read)


def _required(value: Any, kind: type[U], what: str) -> U:
    if type(value) is not kind:
        raise _mismatch(value, what)
    return value


def _mismatch(value: Any, what: str) -> Mismatch:
    return Mismatch(f"is {_shown(value)}, not {what}")


def _shown(value: Any) -> str:
    """Returns a value for a message: briefly."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]!r}..."
    if type(value) is int and abs(value) > LARGEST:
        return "a number of more than 18 digits"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value) if isinstance(value, str) else json.dumps(value)
