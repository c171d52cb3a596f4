"""The state of a training in its checkpoints: which checkpoint is meant, and the leaves by their paths."""

from __future__ import annotations

from hookline.checkpoint import (
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
"""What the variable of the state is called, and so what checkpoints call it."""
AVERAGE = "average"
"""What the variable of the moving averages is called."""


def checkpoint_of(who: str, path: str, step: int | str) -> str:
    """Returns the checkpoint that is meant.

    Args:
        who: For messages.
        path: The directory of a training; or a checkpoint.
        step: "latest", "best" (what `Evaluate(keep_best=...)` kept), or a global step.

    Raises:
        NotFoundError: There is no such checkpoint.
        ValueError: An unknown `step`, or one beside a checkpoint.
    """
    if layout.locate(path) is not None:
        if step != "latest":
            raise ValueError(
                f"{who} was given a checkpoint, '{path}', and step={step!r}: give its directory, or no step."
            )
        return path
    check_step(who, step)
    state = get_checkpoint_state(path)
    if state is None:
        return path  # Whoever reads it says what is there instead.
    if step == "latest":
        return reading.checkpoint_at(path, who, "path")
    known = {candidate: candidate.rpartition("-")[2] for candidate in state.all_model_checkpoint_paths}
    if step == "best":
        if state.best is None:
            raise NotFoundError(
                None, None, f"'{path}' has no best checkpoint: train.Evaluate(..., keep_best=...) keeps one."
            )
        return state.best
    found = [candidate for candidate, number in known.items() if number.isdecimal() and int(number) == step]
    if not found:
        raise NotFoundError(
            None, None, f"'{path}' has no checkpoint of step {step}. There are those of: {', '.join(known.values())}."
        )
    return found[-1]


def check_step(who: str, step: int | str) -> None:
    """Raises `ValueError` for what names no checkpoint of a directory."""
    if isinstance(step, str) and step not in ("latest", "best"):
        raise ValueError(f"{who} requires 'latest', 'best' or a global step as step, got {step!r}.")


def root_of(manifest: Manifest, prefix: str = "") -> str:
    """Returns the name of a part: below the state of a loop, if there is one; else below the variables."""
    inside = f"{STATE}/{prefix}" if prefix else STATE
    names = [name for _, name, _ in _named(manifest)]
    return inside if any(name == inside or name.startswith(f"{inside}/") for name in names) else prefix


def below(manifest: Manifest, root: str, *, averaged: bool = False) -> dict[str, Leaf]:
    """Returns the leaves of a part by their paths in it: a part of one variable, or else of all below that name.

    With `averaged`, moving averages stand in the place of what they are averages of.
    """
    start = f"{root}/" if root else ""
    found = [named for named in _named(manifest) if named[1] == root or named[1].startswith(start)]
    # Averages of a part are called as the part is, and something more.
    own = [named for named in found if named[0] == root or root.startswith(f"{named[0]}/")]
    leaves = {name[len(start) :] if name != root else "": leaf for _, name, leaf in own or found}
    if averaged and root.partition("/")[0] == STATE:
        averages = below(manifest, AVERAGE + root.removeprefix(STATE))
        leaves |= {path: leaf for path, leaf in averages.items() if path in leaves}
    return leaves


def _named(manifest: Manifest) -> list[tuple[str, str, Leaf]]:
    """Returns the leaves with their variables and their names: that of the variable, and the path in it."""
    return [
        (name, f"{name}/{leaf.path}" if leaf.path else name, leaf)
        for name, entry in manifest.variables.items()
        for leaf in entry.leaves
    ]


def check_repeatable(logdir: str | None) -> None:
    """Refuses to go on from a checkpoint with batches that are an iterator, which this process has from there only.

    Raises:
        FailedPreconditionError: The newest checkpoint of the directory has used batches.
    """
    path = latest_checkpoint(logdir) if logdir else None
    names = [name for name, _ in list_variables(path)] if path else []
    if path and f"{BATCHES}/count" in names and load_variable(path, f"{BATCHES}/count"):
        raise FailedPreconditionError(
            None,
            None,
            f"Loop cannot go on from '{path}': its batches are an iterator, which gives each once, and those before "
            f"are needed to come to where the checkpoint is. Give a function that makes it, `lambda: batches()`, or a "
            f"source with a state.",
        )
