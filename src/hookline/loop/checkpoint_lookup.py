"""Finds a checkpoint of a training, and the leaves of the state in it."""

from __future__ import annotations

import re

from hookline.checkpoint import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
    layout,
    list_variables,
    load_variable,
    reading,
)
from hookline.checkpoint.manifest import Leaf, Manifest
from hookline.errors import FailedPreconditionError, NotFoundError
from hookline.loop.batches import BATCHES

STATE = "state"
"""The name of the state's variable, also in checkpoints."""
AVERAGE = "average"
"""The name of the variable of the moving averages."""
# The step of the best checkpoint in the state of an `Evaluate`.
_KEPT_STEP = re.compile(r"hooks/.*/kept/2")  # Of the state of `Evaluate`.


def checkpoint_of(who: str, path: str, step: int | str) -> str:
    """Finds the checkpoint of a step.

    Args:
        who: The caller, for messages.
        path: The directory of a training; or a checkpoint.
        step: "latest", "best" (the checkpoint that `Evaluate(keep_best=...)` kept), or a global step.

    Raises:
        NotFoundError: There is no such checkpoint.
        ValueError: `step` is unknown, or was given with a checkpoint.
    """
    if layout.locate(path) is not None:
        if step != "latest":
            raise ValueError(
                f"{who} was given a checkpoint, '{path}', and step={step!r}: give its directory, or leave out the step."
            )
        return path
    check_step(who, step)
    state = get_checkpoint_state(path)
    if state is None:
        return path  # The error comes from reading it.
    if step == "latest":
        return reading.checkpoint_at(path, who, "path")
    known = {candidate: candidate.rpartition("-")[2] for candidate in state.all_model_checkpoint_paths}
    if step == "best":
        if state.best is None:
            raise NotFoundError(None, None, f"'{path}' has no best checkpoint{_why_no_best(state)}")
        return state.best
    found = [candidate for candidate, number in known.items() if number.isdecimal() and int(number) == step]
    if not found:
        raise NotFoundError(
            None, None, f"'{path}' has no checkpoint of step {step}. It has those of: {', '.join(known.values())}."
        )
    return found[-1]


def _why_no_best(state: CheckpointState) -> str:
    """Returns the rest of a sentence that says that there is no best checkpoint."""
    lost = state.lost_best
    if lost is None:  # A state file of another directory may know it.
        newest = state.model_checkpoint_path
        leaves = layout.read_manifest(newest)[1].leaves.values()
        steps = [leaf.value for leaf in leaves if _KEPT_STEP.fullmatch(leaf.name) and leaf.kind == "int"]
        if steps:
            lost = f"{layout.base_of(newest)}-{steps[0]}"
    if lost is None:
        return ": train.Evaluate(..., keep_best=...) keeps one."
    return (
        f" any more: it was '{lost}', of step {lost.rpartition('-')[2]}, which is gone. A training that goes on with "
        f"train.Evaluate(..., keep_best=...) keeps the best of its next evaluations."
    )


def check_step(who: str, step: int | str) -> None:
    """Raises `ValueError` for an unknown name in place of a step."""
    if isinstance(step, str) and step not in ("latest", "best"):
        raise ValueError(f"{who} requires 'latest', 'best' or a global step as step, got {step!r}.")


def root_of(manifest: Manifest, prefix: str = "") -> str:
    """Returns the name of a part of a checkpoint: in the state of a loop, if there is one; else among the variables."""
    inside = f"{STATE}/{prefix}" if prefix else STATE
    names = [name for _, name, _ in _named(manifest)]
    return inside if any(name == inside or name.startswith(f"{inside}/") for name in names) else prefix


def below(manifest: Manifest, root: str, *, averaged: bool = False) -> dict[str, Leaf]:
    """Returns the leaves of a part by their paths in it: of one variable, or else of all whose names begin with it.

    With `averaged`, moving averages take the place of the averaged leaves.
    """
    start = f"{root}/" if root else ""
    found = [named for named in _named(manifest) if named[1] == root or named[1].startswith(start)]
    # The names of a part's averages begin with the name of the part.
    own = [named for named in found if named[0] == root or root.startswith(f"{named[0]}/")]
    leaves = {name[len(start) :] if name != root else "": leaf for _, name, leaf in own or found}
    if averaged and root.partition("/")[0] == STATE:
        averages = below(manifest, AVERAGE + root.removeprefix(STATE))
        leaves |= {path: leaf for path, leaf in averages.items() if path in leaves}
    return leaves


def _named(manifest: Manifest) -> list[tuple[str, str, Leaf]]:
    """Returns the name of the variable, the full name, and the leaf, for all leaves."""
    return [
        (name, f"{name}/{leaf.path}" if leaf.path else name, leaf)
        for name, entry in manifest.variables.items()
        for leaf in entry.leaves
    ]


def check_repeatable(logdir: str | None) -> None:
    """Checks that a loop whose batches are an iterator has no checkpoint to resume from.

    Raises:
        FailedPreconditionError: The newest checkpoint of the directory has used batches.
    """
    path = latest_checkpoint(logdir) if logdir else None
    names = [name for name, _ in list_variables(path)] if path else []
    if path and f"{BATCHES}/count" in names and load_variable(path, f"{BATCHES}/count"):
        raise FailedPreconditionError(
            None,
            None,
            f"Loop cannot go on from '{path}': its batches are an iterator, which cannot be set to the position of the "
            f"checkpoint. Give a function that makes it, `lambda: batches()`, or a source with a state. If the data "
            f"shall begin anew at each start, give Loop resume_data=False.",
        )
