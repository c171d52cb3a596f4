"""Checks whether a checkpoint fits the variables to be restored from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax

from hookline import errors
from hookline.checkpoint.directory import leaves
from hookline.checkpoint.directory.manifest import Entry, Leaf
from hookline.graph.nodes.spec import UNKNOWN
from hookline.log import in_a_line


@dataclasses.dataclass(frozen=True)
class Match:
    """The parts to rebuild one variable: its leaves in the checkpoint, in the order of its structure."""

    leaves: tuple[Leaf, ...]
    structure: Any


ADVICE = (
    "Restore with the graph that saved it, or choose with Saver(var_list=...): a list of the variables to restore, or "
    "a dict from the names in the checkpoint to variables."
)
MISSING, SPARE = "  missing in the checkpoint: ", "  only in the checkpoint: "
"""How the lines of the error begin that name variables and leaves."""
_TWICE = (
    "Was the graph built twice, as by a notebook's cell that is run again, so that '{0}' is a second one? Call "
    "hookline.reset_default_graph() first, or build it in `with hookline.Graph().as_default():`."
)


def fit(
    path: str,
    variables: Mapping[str, Entry],
    wanted: Mapping[str, Any],
    *,
    reshape: bool = False,
    what: str = "the variables to restore; nothing was changed",
    where: str = "the graph",
    advice: str = ADVICE,
) -> dict[str, Match]:
    """Matches the variables of a checkpoint with those of a graph, by name and by the paths of their leaves.

    A checkpoint may hold more: a graph for evaluation has no optimizer. `wanted` has, by name in the
    checkpoint, the spec of the variable to restore, or `UNKNOWN`. With `reshape` another shape with as many elements
    fits too. `what`, `where` and `advice` are parts of the error's text: the things to fit, the place that differs, and
    the remedy.

    Raises:
        NotFoundError: A variable or leaf is missing in the checkpoint.
        InvalidArgumentError: Nothing is missing, but a structure, shape or dtype differs.
    """
    missing: list[str] = []
    unexpected: list[str] = []
    different: list[str] = []
    matches = {}
    for name, spec in wanted.items():
        entry = variables.get(name)
        if entry is None:
            missing.append(name)
        elif spec is UNKNOWN:
            matches[name] = Match(entry.leaves, entry.treedef)
            if matches[name].structure is None:
                different.append(
                    f"{name} is built of the user's own containers, which the graph does not know yet: run its "
                    f"initializer before restoring"
                )
        else:
            pairs, structure = leaves.with_paths(spec)
            saved = {leaf.path: leaf for leaf in entry.leaves}
            matches[name] = Match(tuple(saved[path] for path, _ in pairs if path in saved), structure)
            for leaf_path, leaf_spec in pairs:
                full, leaf = _full(name, leaf_path), saved.pop(leaf_path, None)
                if leaf is None:
                    missing.append(full)
                    continue
                if not _fits(leaf.shape, leaf_spec.shape, reshape):
                    shown = tuple(dim if isinstance(dim, int) else None for dim in leaf_spec.shape)
                    different.append(f"{full} has shape {leaf.shape} in the checkpoint, {shown} in {where}")
                if leaf.dtype != str(leaf_spec.dtype):
                    different.append(f"{full} has dtype {leaf.dtype} in the checkpoint, {leaf_spec.dtype} in {where}")
            unexpected += [_full(name, leaf_path) for leaf_path in saved]
    if not (missing or unexpected or different):
        return matches
    spare = sorted(set(variables) - set(wanted))
    lines = [f"Checkpoint '{path}' does not fit {what}."]
    lines += [in_a_line(f"{MISSING}{name}") for name in missing]
    lines += [in_a_line(f"{SPARE}{name}") for name in unexpected + (spare if missing else [])]
    lines += [in_a_line(f"  different: {line}") for line in different]
    lines += [_TWICE.format(name) for name in missing if _is_second(name, wanted)][:1]
    lines.append(advice)
    kind = errors.NotFoundError if missing else errors.InvalidArgumentError
    raise kind.from_message("\n".join(lines))


def _is_second(name: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a graph has numbered the name of a variable, for another one has it."""
    first, _, number = name.rpartition("_")
    return number.isdigit() and first in wanted


def shaped_as(spec: Any, value: Any) -> Any:
    """Returns a value in the shapes of a spec, which it otherwise fits."""
    if spec is UNKNOWN:
        return value
    return jax.tree.map(lambda array, leaf: array.reshape(leaf.shape), value, spec)


def _full(name: str, leaf_path: str) -> str:
    return f"{name}/{leaf_path}" if leaf_path else name


def _fits(saved: tuple[int, ...], spec: tuple[Any, ...], reshape: bool) -> bool:
    if reshape and all(isinstance(dim, int) for dim in spec):
        return math.prod(saved) == math.prod(spec)
    return len(saved) == len(spec) and all(
        not isinstance(dim, int) or dim == length for length, dim in zip(saved, spec, strict=True)
    )
