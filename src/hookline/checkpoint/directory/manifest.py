"""The manifest of a checkpoint: each variable's leaves with path, shape, dtype, kind and checksums."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import google_crc32c
import jax
import jax.numpy as jnp

from hookline.checkpoint.directory import schema
from hookline.checkpoint.saving.host_copy import Piece

FILE_NAME = "hookline.json"
FORMAT = 4
MAX_BYTES = 256 * 2**20
"""The largest manifest that is read."""
_CHECKSUM = ', "crc32c": '


class UnsupportedFormat(ValueError):
    """A manifest of a format that this version of hookline does not read."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a variable.

    Attributes:
        path: Its path inside the variable, such as "dense/kernel"; empty if the variable is a single leaf.
        name: Its name in the checkpoint, such as "params/dense/kernel": unique, and its key in the stored tree.
        kind: Its kind in the variable: "array", "key", "numpy", "scalar" (of NumPy), "bytes", "str", "int", "float" or
            "bool".
        shape: Its shape.
        dtype: Its dtype as a string, such as "bfloat16" or "key<fry>"; for Python values the name of their type.
        value: The part kept in the manifest itself: a Python value, or the PRNG implementation of a key.
        pieces: The checksums of its stored pieces; empty for values in the manifest.
    """

    path: str
    name: str
    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None
    pieces: tuple[Piece, ...] = ()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable: its leaves in order, and its tree structure if it consists of Python containers only."""

    leaves: tuple[Leaf, ...]
    structure: str | None = None

    @property
    def treedef(self) -> Any | None:
        """The tree structure; None if it has custom nodes."""
        if self.structure is None:
            return None
        serialized = base64.b64decode(self.structure)
        return jax.tree_util.PyTreeDef.deserialize_using_proto(jax.tree_util.default_registry, serialized)


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The ancestry of a save.

    Attributes:
        run_id: The random id of the run. An initialised model begins a run, a restored model continues its own.
        save_number: The save number of the parent plus one. The parent is the last save of the session, or else the
            checkpoint that it restored.
        sessions: For each session that led to this save, oldest first, its random id and the number of the save that
            the next session restored; the last pair is the session of this save and its number.

    Example:
        A session makes the saves 1 and 2. The next one restores 1, and makes another save 2.
        >>> first, last = Lineage("run", 1, (("a", 1),)), Lineage("run", 2, (("a", 2),))
        >>> other = Lineage("run", 2, (("a", 1), ("b", 2)))
        >>> last.follows(first), other.follows(first), other.follows(last), last.follows(other)
        (True, True, False, False)
    """

    run_id: str
    save_number: int
    sessions: tuple[tuple[str, int], ...]

    def follows(self, other: Lineage) -> bool:
        """Returns whether the other save is this one, or led to it."""
        session, number = other.sessions[-1]
        return number <= dict(self.sessions).get(session, -1)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint's manifest.

    Attributes:
        variables: The contents, by variable name.
        lineage: Its ancestry.
        step: The number of completed steps, or None if it was saved without one.
        timestamp: The time just before it became complete, in seconds since the epoch.
        format: The format of the file.
        extra: Whether `max_to_keep` does not count it.
        devices: The names of the devices of its arrays, if there were several.
        environment: The versions of hookline, Python and JAX, the kind of the first device, the flags, and the number
            of processes; those that are unknown are missing.
    """

    variables: dict[str, Entry]
    lineage: Lineage
    step: int | None = None
    timestamp: float = 0.0
    format: int = FORMAT
    extra: bool = False
    devices: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, Leaf]:
        """All leaves of all variables, by name."""
        return {leaf.name: leaf for entry in self.variables.values() for leaf in entry.leaves}

    def to_json(self) -> str:
        """Returns the text of the manifest file, which ends with a checksum of the preceding text."""
        text = json.dumps(dataclasses.asdict(self))
        return f"{text[:-1]}{_CHECKSUM}{google_crc32c.value(text[:-1].encode())}}}"

    def with_pieces(self, stored: Iterable[Mapping[str, Sequence[Any]]]) -> Manifest:
        """Returns a copy with the pieces of all processes; `stored` has, for each process, the pieces by leaf name."""
        found: dict[str, list[Piece]] = {}
        for pieces in stored:
            for name, own in pieces.items():
                found.setdefault(name, []).extend(Piece(tuple(start), tuple(stop), crc) for start, stop, crc in own)
        variables = {
            name: Entry(
                tuple(dataclasses.replace(leaf, pieces=tuple(found.get(leaf.name, ()))) for leaf in entry.leaves),
                entry.structure,
            )
            for name, entry in self.variables.items()
        }
        return dataclasses.replace(self, variables=variables)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Parses the text of a manifest file; raises `ValueError`, or `UnsupportedFormat`, if it cannot be used."""
        try:
            fields = schema.load_json(text)
            head = _HEAD.read(fields)
            written, checksum = head["format"], head.get("crc32c")
            found = google_crc32c.value(text.rpartition(_CHECKSUM)[0].encode("utf-8", "surrogatepass"))
            # An earlier format with a wrong checksum may be a flipped bit. The checksum of a later format is unknown.
            if written > FORMAT or (written < FORMAT and checksum in (None, found)):
                advice = "upgrade hookline" if written > FORMAT else "use the version that wrote it"
                raise UnsupportedFormat(
                    f"it has format {written}, and this version of hookline reads {FORMAT}: {advice}"
                )
            if checksum != found:
                raise ValueError(f"its {FILE_NAME} is damaged: it does not have its checksum")
            return _MANIFEST.read(fields)
        except schema.SchemaError as error:
            raise ValueError(f"its {FILE_NAME} is damaged: {error}") from error


def _leaf(**fields: Any) -> Leaf:
    leaf = Leaf(**fields)
    if leaf.kind in _IN_MANIFEST:
        if type(leaf.value) is not _IN_MANIFEST[leaf.kind]:
            raise schema.SchemaError(f"is no {leaf.kind}", ".value")
        return leaf
    if leaf.kind == "bytes" and len(leaf.shape) != 1:
        raise schema.SchemaError("is not the shape of bytes", ".shape")
    if leaf.kind == "key" and not isinstance(leaf.value, str):
        raise schema.SchemaError("is not the name of a PRNG implementation", ".value")
    size = _itemsize(leaf.dtype) if leaf.kind in _OF_NUMBERS else 1
    if math.prod(length for length in leaf.shape if length) * size > schema.LARGEST:
        raise schema.SchemaError("is larger than any memory", ".shape")
    # A key is stored as several numbers, in one more dimension.
    rank = len(leaf.shape) + (leaf.kind == "key")
    for number, piece in enumerate(leaf.pieces):
        inside = len(piece.start) == len(piece.stop) == rank and all(
            start <= stop for start, stop in zip(piece.start, piece.stop, strict=True)
        )
        if not inside or any(stop > length for stop, length in zip(piece.stop, leaf.shape, strict=False)):
            raise schema.SchemaError("is outside of the shape", f".pieces[{number}]")
    return leaf


def _itemsize(dtype: str) -> int:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name != dtype or found.kind in "OSUMm":
        raise schema.SchemaError("is not the name of a dtype", ".dtype")
    return found.itemsize


def _entry(leaves: tuple[Leaf, ...], structure: str | None) -> Entry:
    entry = Entry(leaves, structure)
    try:
        if (found := entry.treedef) is not None and found.num_leaves == len(leaves):
            found.unflatten(leaves)
    except (ValueError, RuntimeError, MemoryError) as error:  # Most defects are found only by `unflatten`.
        raise schema.SchemaError("is not the structure of a pytree", ".structure") from error
    if found is not None and found.num_leaves != len(leaves):
        raise schema.SchemaError(f"has {found.num_leaves} leaves, and there are {len(leaves)}", ".structure")
    return entry


def _manifest(**fields: Any) -> Manifest:
    found = Manifest(**fields)
    seen = set[str]()
    for variable, entry in found.variables.items():
        for number, leaf in enumerate(entry.leaves):
            if leaf.name in seen:
                raise schema.SchemaError(
                    "is the name of another leaf, too", f".variables[{variable!r}].leaves[{number}].name"
                )
            seen.add(leaf.name)
    return found


_IN_MANIFEST = {"bool": bool, "int": int, "float": float, "str": str}
_OF_NUMBERS = ("array", "numpy", "scalar")
_INDICES = schema.list_of(schema.integer(at_least=0), at_most=64)
_PIECE = schema.record(Piece, start=_INDICES, stop=_INDICES, crc32c=schema.integer(0, 2**32 - 1))
_LEAF = schema.record(
    _leaf,
    path=schema.string(),
    name=schema.string(),
    kind=schema.one_of(*_OF_NUMBERS, "key", "bytes", *_IN_MANIFEST),
    shape=_INDICES,
    dtype=schema.string(),
    value=schema.anything(),
    pieces=schema.list_of(_PIECE),
)
_ENTRY = schema.record(_entry, leaves=schema.list_of(_LEAF), structure=schema.nullable(schema.string()))
_LINEAGE = schema.record(
    Lineage,
    run_id=schema.string(),
    save_number=schema.integer(at_least=0),
    sessions=schema.list_of(schema.pair(schema.string(), schema.integer(at_least=0)), at_least=1),
)
_MANIFEST = schema.record(
    _manifest,
    variables=schema.dict_of(_ENTRY),
    step=schema.nullable(schema.integer(at_least=0)),
    timestamp=schema.number(),
    format=schema.integer(at_least=1),
    extra=schema.boolean(),
    devices=schema.list_of(schema.string()),
    environment=schema.not_required(schema.dict_of(schema.string())),
    lineage=_LINEAGE,
)
_HEAD = schema.record(
    dict,
    format=schema.integer(at_least=1),
    crc32c=schema.not_required(schema.integer()),
)
