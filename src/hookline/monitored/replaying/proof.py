"""Proof: compares the state of a replay with the checkpoints of its run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hookline.checkpoint.directory import collective, leaves
from hookline.checkpoint.saving import contents, host_copy
from hookline.graph import GraphKeys
from hookline.hooks import CheckpointSaverHook, Firing, SessionRunHook, at_steps
from hookline.hooks.trigger import NEVER
from hookline.monitored.replaying.past_run import SavedStep
from hookline.session import Session

_UNKNOWN = "unknown"


class Comparison(NamedTuple):
    """The comparison of a replay with one checkpoint of its run.

    Args:
        step: The global step.
        path: The checkpoint.
        compared: The number of arrays and values that were compared.
        different: The names of those that differ, as in `train.list_variables`.
        environment: What is not as it was when the checkpoint was saved: by name, then and now; "unknown" if the
            checkpoint does not tell.
    """

    step: int
    path: str
    compared: int
    different: tuple[str, ...]
    environment: dict[str, tuple[str, str]]


class Proof(SessionRunHook):
    """Compares the checksums of the state, the averages, the step, keys and data with those of a run's checkpoints.

    Args:
        saved: The checkpoints.

    Attributes:
        comparisons: The comparisons so far.
    """

    comes_before = (CheckpointSaverHook,)

    def __init__(self, saved: Sequence[SavedStep]) -> None:
        self._saved = {each.step: each for each in saved}
        self.trigger = at_steps(*(self._saved or (NEVER,)))
        self.comparisons: list[Comparison] = []

    def on_trigger(self, firing: Firing) -> None:
        """Compares, if this is the step of a checkpoint."""
        # As before a save: a rollback, say, comes first.
        firing.context.deliver_pending()
        self.check(firing.context.session)

    def check(self, session: Session) -> None:
        """Compares, if this is the step of a checkpoint that has not been compared yet."""
        if (saved := self._saved.pop(session.global_step, None)) is not None:
            self.comparisons.append(compare(session, saved))


def compare(session: Session, saved: SavedStep) -> Comparison:
    """Compares all that a session would save, without the states of hooks, with a checkpoint of the same step.

    SPMD processes compare together, each its own part of the arrays.
    """
    with session.backend.lock:
        parts = collective.current().run_on_all(lambda: _compare_own_part(session, saved))
    every = saved.manifest.leaves
    different = dict.fromkeys(itertools.chain.from_iterable(names for _, names, _ in parts))
    for name in set[str]().union(*(partials for _, _, partials in parts)):  # Pieces that no process has whole.
        if not host_copy.partials_match(every[name].pieces, [partials.get(name, {}) for _, _, partials in parts]):
            different[name] = None
    return Comparison(saved.step, saved.path, parts[0][0], tuple(different), _changes(saved))


def _compare_own_part(session: Session, saved: SavedStep) -> tuple[int, list[str], dict[str, Any]]:
    """Returns the number of arrays and values, the names of those that differ, and partial checksums by name."""
    backend, compared, different, partials = session.backend, 0, list[str](), dict[str, Any]()
    values, positions = backend.values_with_positions(
        backend.variables(GraphKeys.GLOBAL_VARIABLES), backend.sources.names()
    )
    here, stored = leaves.pack(values | {name: position.value for name, position in positions.items()})
    for name, entry in saved.manifest.variables.items():
        if name.startswith(contents.HOOK_STATES):
            continue
        if name not in here:
            different.append(name)
            continue
        own = {leaf.path: leaf for leaf in here[name].leaves}
        for leaf in entry.leaves:
            compared += 1
            found = _compare_leaf(leaf, own.pop(leaf.path, None), stored)
            if found is None:
                different.append(leaf.name)
            elif found:
                partials[leaf.name] = found
        different += [leaf.name for leaf in own.values()]
    return compared, different, partials


def _compare_leaf(leaf: Any, own: Any, stored: dict[str, Any]) -> host_copy.PartialChecksums | None:
    """Returns the partial checksums of this process; None if the leaf differs."""
    if own is None or (own.kind, own.shape, own.dtype, own.value) != (leaf.kind, leaf.shape, leaf.dtype, leaf.value):
        return None
    return host_copy.compare_checksums(leaf.pieces, stored[own.name]) if own.name in stored else {}


def _changes(saved: SavedStep) -> dict[str, tuple[str, str]]:
    """Returns what differs in the environment, then and now, by name."""
    then, now = saved.manifest.environment, contents.environment()
    found = {name: (then.get(name, _UNKNOWN), now[name]) for name in now}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}
