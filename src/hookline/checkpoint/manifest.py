"""A checkpoint's description of itself: every variable's leaves with path, shape, dtype and kind."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import google_crc32c

from hookline.checkpoint.checksums import Piece
from hookline.checkpoint.lineage import Lineage
from hookline.version import __version__

FILE_NAME = "hookline.json"
FORMAT = 3
_CHECKSUM = ', "crc32c": '


class NewerFormat(ValueError):
    """A manifest from a later version of hookline."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a variable.

    Attributes:
        path: Its place inside the variable, such as "dense/kernel"; empty if the variable is a single leaf.
        name: Its name in the checkpoint, such as "params/dense/kernel": unique, and its key in the stored tree.
        kind: Its kind in the variable: "array", "key", "numpy", "scalar" (of NumPy), "bytes", "str", "int", "float" or
            "bool".
        shape: Its shape.
        dtype: Its dtype as a string, such as "bfloat16" or "key<fry>"; for Python values the name of their type.
        value: The part kept in the manifest itself: a Python value, or the name of a key's generator.
        pieces: The checksums of its stored pieces; empty for values in the manifest, and in old checkpoints.
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


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint's manifest.

    Attributes:
        variables: The contents, by variable name.
        step: The number of completed steps, or None if it was saved without one.
        timestamp: The time just before it became complete, in seconds since the epoch.
        format: The format of the file; the first one had no checksums.
        extra: Whether `max_to_keep` does not count it.
        devices: The names of the devices that its arrays lay on, if these were several.
        lineage: Its place among the saves of its run; None before format 3.
    """

    variables: dict[str, Entry]
    step: int | None = None
    timestamp: float = 0.0
    format: int = FORMAT
    extra: bool = False
    devices: tuple[str, ...] = ()
    lineage: Lineage | None = None

    @property
    def leaves(self) -> dict[str, Leaf]:
        """All leaves of all variables, by name."""
        return {leaf.name: leaf for entry in self.variables.values() for leaf in entry.leaves}

    def to_json(self) -> str:
        """Returns the text of the manifest file, which ends with a checksum of the text before it."""
        text = json.dumps({"hookline": __version__, **dataclasses.asdict(self)})
        return f"{text[:-1]}{_CHECKSUM}{google_crc32c.value(text[:-1].encode())}}}"

    def with_pieces(self, stored: Iterable[Mapping[str, Sequence[Any]]]) -> Manifest:
        """Returns a manifest with the pieces that each process has stored of the leaves, by their names."""
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
        """Reads the text of a manifest file; raises `ValueError`, or `NewerFormat`, if it cannot be used."""
        try:
            fields = json.loads(text)
            if fields["format"] > FORMAT:
                raise NewerFormat(
                    f"it has format {fields['format']}, this version of hookline reads up to {FORMAT}: upgrade hookline"
                )
            checksum = google_crc32c.value(text.rpartition(_CHECKSUM)[0].encode())
            if (fields["format"] > 1 or "crc32c" in fields) and checksum != fields["crc32c"]:
                raise ValueError(f"its {FILE_NAME} is damaged: it does not have its checksum")
            variables = {
                name: Entry(tuple(map(_leaf, entry["leaves"])), entry["structure"])
                for name, entry in fields["variables"].items()
            }
            return Manifest(
                variables,
                fields["step"],
                fields["timestamp"],
                fields["format"],
                fields.get("extra", False),
                tuple(fields.get("devices", ())),
                Lineage.from_fields(fields["lineage"]) if fields.get("lineage") else None,
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"its {FILE_NAME} is damaged: it is not a manifest") from error


def _leaf(fields: dict[str, Any]) -> Leaf:
    pieces = tuple(
        Piece(tuple(piece["start"]), tuple(piece["stop"]), piece["crc32c"]) for piece in fields.get("pieces", ())
    )
    return Leaf(**{**fields, "shape": tuple(fields["shape"]), "pieces": pieces})
