"""What a checkpoint says about itself: every variable's leaves with path, shape, dtype and kind."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from typing import Any

FILE_NAME = "hookline.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a variable.

    Attributes:
        path: Its place inside the variable, such as "dense/kernel"; empty where the variable is a single leaf.
        name: Its name in the checkpoint, such as "params/dense/kernel": unique, and its key in the stored tree.
        kind: How it was held: "array", "key", "numpy", "scalar" (of NumPy), "bytes", "str", "int", "float" or "bool".
        shape: Its shape.
        dtype: Its dtype as a string, such as "bfloat16" or "key<fry>"; for Python values the name of their type.
        value: What stands in the manifest itself: a Python value, or the name of a key's generator.
    """

    path: str
    name: str
    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable: its leaves in order, and its tree structure where it is made of Python containers alone."""

    leaves: tuple[Leaf, ...]
    structure: str | None = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint's manifest.

    Attributes:
        variables: What is in it, by variable name.
        step: The number of completed steps, or None if it was saved without one.
        timestamp: When it became complete, in seconds since the epoch.
    """

    variables: dict[str, Entry]
    step: int | None = None
    timestamp: float = 0.0

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        return json.dumps({"format": FORMAT, "hookline": _version(), **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Reads the text of a manifest file; `ValueError` if it is not one, or is of a newer format."""
        try:
            fields = json.loads(text)
            if fields["format"] > FORMAT:
                raise ValueError(
                    f"it has format {fields['format']}, this version of hookline reads up to {FORMAT}: upgrade hookline"
                )
            variables = {
                name: Entry(
                    tuple(Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in entry["leaves"]),
                    entry["structure"],
                )
                for name, entry in fields["variables"].items()
            }
            return Manifest(variables, fields["step"], fields["timestamp"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its {FILE_NAME} is not a manifest ({error!r})") from error


def _version() -> str:
    try:
        return importlib.metadata.version("hookline")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
