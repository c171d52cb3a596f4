"""Checks whether a checkpoint fits the variables to be restored from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hookline import errors
from hookline.checkpoint import leaves
from hookline.checkpoint.manifest import Entry, Leaf, Manifest
from hookline.graph.spec import UNKNOWN


@dataclasses.dataclass(frozen=True)
class Match:
    """How to rebuild one variable: its leaves in the checkpoint, in the order of its structure."""

    leaves: tuple[Leaf, ...]
    structure: Any


ADVICE = (
    "Restore with the graph that saved it, or choose with Saver(var_list=...): a list of the variables to restore, or "
    "a dict from the names in the checkpoint to variables."
)


def fit(
    path: str,
    manifest: Manifest,
    wanted: Mapping[str, Any],
    *,
    reshape: bool = False,
    what: str = "the variables to restore; nothing was changed",
    where: str = "the graph",
    advice: str = ADVICE,
) -> dict[str, Match]:
    """Matches a checkpoint with variables, by name and by the paths of their leaves.

    A checkpoint may hold more variables: a graph for evaluation has no optimizer.

    Args:
        path: The checkpoint, for messages.
        manifest: What is in it.
        wanted: By name in the checkpoint the spec of the variable to restore, or `UNKNOWN`.
        reshape: Another shape with as many elements fits too.
        what: What the error says that the checkpoint does not fit.
        where: Where the error says that something is otherwise.
        advice: What the error says at its end.

    Returns:
        A match for each wanted name.

    Raises:
        NotFoundError: Something is missing in the checkpoint.
        InvalidArgumentError: Nothing is missing, but something has another structure, shape or dtype.
    """
    missing: list[str] = []
    unexpected: list[str] = []
    different: list[str] = []
    matches = {}
    for name, spec in wanted.items():
        entry = manifest.variables.get(name)
        if entry is None:
            missing.append(name)
        elif spec is UNKNOWN:
            matches[name] = _as_saved(name, entry, different)
        else:
            same_shape = _same_size if reshape else _same_shape
            matches[name] = _compare(name, spec, entry, same_shape, where, missing, unexpected, different)
    if not (missing or unexpected or different):
        return matches
    spare = sorted(set(manifest.variables) - set(wanted))
    lines = [f"Checkpoint '{path}' does not fit {what}."]
    lines += [f"  missing in the checkpoint: {name}" for name in missing]
    lines += [f"  only in the checkpoint: {name}" for name in unexpected + (spare if missing else [])]
    lines += [f"  different: {line}" for line in different]
    lines.append(advice)
    kind = errors.NotFoundError if missing else errors.InvalidArgumentError
    raise kind(None, None, "\n".join(lines))


def shaped_as(spec: Any, value: Any) -> Any:
    """Returns a value in the shapes of a spec, which it otherwise fits."""
    if spec is UNKNOWN:
        return value
    return jax.tree.map(lambda array, leaf: array.reshape(leaf.shape), value, spec)


def _as_saved(name: str, entry: Entry, different: list[str]) -> Match:
    structure = leaves.structure_of(entry)
    if structure is None:
        different.append(
            f"{name} is built of the user's own containers, and the graph does not know yet of which: run its "
            f"initializer before restoring"
        )
    return Match(entry.leaves, structure)


def _compare(
    name: str,
    spec: Any,
    entry: Entry,
    same_shape: Callable[[tuple[int, ...], tuple[Any, ...]], bool],
    where: str,
    missing: list[str],
    unexpected: list[str],
    different: list[str],
) -> Match:
    pairs, structure = leaves.with_paths(spec)
    saved = {leaf.path: leaf for leaf in entry.leaves}
    found = []
    for leaf_path, leaf_spec in pairs:
        full = f"{name}/{leaf_path}" if leaf_path else name
        leaf = saved.pop(leaf_path, None)
        if leaf is None:
            missing.append(full)
            continue
        found.append(leaf)
        if not same_shape(leaf.shape, leaf_spec.shape):
            different.append(f"{full} has shape {leaf.shape} in the checkpoint, {_shown(leaf_spec)} in {where}")
        if leaf.dtype != str(leaf_spec.dtype):
            different.append(f"{full} has dtype {leaf.dtype} in the checkpoint, {leaf_spec.dtype} in {where}")
    unexpected += [f"{name}/{path}" if path else name for path in saved]
    return Match(tuple(found), structure)


def _same_shape(saved: tuple[int, ...], spec: tuple[Any, ...]) -> bool:
    return len(saved) == len(spec) and all(
        not isinstance(dim, int) or dim == length for length, dim in zip(saved, spec, strict=True)
    )


def _same_size(saved: tuple[int, ...], spec: tuple[Any, ...]) -> bool:
    is_known = all(isinstance(dim, int) for dim in spec)
    return _same_shape(saved, spec) or (is_known and math.prod(saved) == math.prod(spec))


def _shown(spec: jax.ShapeDtypeStruct) -> tuple[int | None, ...]:
    return tuple(dim if isinstance(dim, int) else None for dim in spec.shape)
