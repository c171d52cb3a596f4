"""Hostile contents of a folder of checkpoints: changed records, and things that are no files."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c

VALUES: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf"), 1e308, "", "text", "../../x", "\0",
    "\ud800", "\x1b]0;x\x07", "x" * 10**5, [], [[]], {}, [-1], [2**62, 2**62], {"a": 1}, "AAAA", "////",
]  # fmt: skip


def signed(fields: Any) -> str:
    """Returns the text of a manifest with these fields and a right checksum: the work of somebody, not of chance."""
    fields.pop("crc32c", None)
    text = json.dumps(fields)[:-1]
    return f'{text}, "crc32c": {google_crc32c.value(text.encode())}}}'


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields all containers below a value, with each of their keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def changed(fields: Any, chance: random.Random) -> None:
    """Changes something in a record: a value, a field that is gone, a number that is off."""
    container, key = chance.choice(list(places(fields)))
    how = chance.randrange(4)
    if how == 0 and isinstance(container, dict):
        del container[key]
    elif how == 1 and isinstance(container, list):
        container.append(container[key])
    elif how == 2 and type(container[key]) is int:
        container[key] += chance.choice([-1, 1, 2**20, 2**40])
    elif how == 2 and isinstance(container[key], str) and container[key]:
        at = chance.randrange(len(container[key]))
        container[key] = container[key][:at] + chance.choice("A/=\x1bz") + container[key][at + 1 :]
    else:
        container[key] = chance.choice(VALUES)


def changed_leaf(fields: Any, chance: random.Random) -> None:
    """Changes a leaf of a manifest into another one that a manifest may have."""
    leaf = chance.choice(chance.choice(list(fields["variables"].values()))["leaves"])
    how = chance.randrange(4)
    if how == 0:
        value = chance.choice([True, -1, 10**400, 0.5, "text", "{}", "[]", '{"a": 1}'])
        kind = type(value).__name__
        leaf.update(kind=kind, dtype=kind, value=value, shape=[], pieces=[])
    elif how == 1:
        shape = chance.choice([[], [0], [7], [2**40], [0, 2**60], [2, 3], [1] * 40])
        leaf.update(shape=shape, pieces=chance.choice([[], [{"start": [0] * len(shape), "stop": shape, "crc32c": 1}]]))
    elif how == 2:
        leaf["kind"] = chance.choice(["array", "numpy", "scalar", "bytes", "key"])
        leaf["value"] = "fry" if leaf["kind"] == "key" else None
    else:
        leaf["dtype"] = chance.choice(["float32", "float64", "bfloat16", "int4", "complex128", "bool", "uint8"])


def changed_text(text: str, chance: random.Random) -> bytes:
    """Returns a truncated text, or one with other bytes, or deeply nested JSON."""
    data, at = text.encode("utf-8", "surrogatepass"), chance.randrange(len(text))
    how = chance.randrange(4)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
    if how == 2:
        return data[:at] + chance.choice([b"[", b'{"a":']) * 200_000 + data[at:]
    return chance.choice([b"", b"\0" * 1000, b"null", b"[]", b"{}", b"1" * 10_000])


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.getcwd()  # The name of a socket has at most 107 bytes.
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * 2**30)


def _directory(path: Path) -> None:
    path.mkdir()


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a FIFO": _fifo,
    "a socket": _socket,
    "a device": _endless,
    "a directory": _directory,
    "a huge file": _sparse,
}
"""Makes what is no small file, by what it is."""


def put(path: Path, what: str) -> None:
    """Replaces a file by such a thing."""
    path.unlink(missing_ok=True)
    NO_FILES[what](path)
