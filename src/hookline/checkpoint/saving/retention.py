"""Retention: the choice of checkpoints to keep, and cleaning a directory by it when no training runs there."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import NamedTuple

from hookline import arguments
from hookline.checkpoint.directory import layout, lease
from hookline.checkpoint.directory.schema import LARGEST
from hookline.checkpoint.directory.state_file import (
    STATE_FILE_NAME,
    CheckpointState,
    read_state,
    resolve_state,
    write_state,
)
from hookline.checkpoint.restoring import inspection, reading, restart
from hookline.checkpoint.saving import moves
from hookline.errors import FailedPreconditionError, NotFoundError, OpError

_SECS_PER_HOUR = 3600.0


class KeptCheckpoint(NamedTuple):
    """A complete checkpoint: its path, the time of writing, and the number of completed steps, if known.

    An extra one is not counted; only the newest of them stays.
    """

    path: str
    timestamp: float
    extra: bool = False
    step: int | None = None


class Retention:
    """The checkpoints that a saver keeps, oldest first, and the rule for removing old ones. Touches no files.

    The newest checkpoint that is known to be good is kept in addition to the counted ones, until a newer one is; so is
    the best, until another one is marked.

    Attributes:
        kept: The checkpoints that may still be removed later, oldest first.
        last_good: The newest checkpoint that is known to be good; None if there is none.
        best: The checkpoint that was marked as the best; None if there is none.
        lost_best: The checkpoint that was marked as the best, if it is gone and no other has been marked since.
        preserved: The time up to which each period has its permanent checkpoint, in seconds since the epoch; at first
            the time of the oldest checkpoint, None before there is one.
    """

    def __init__(self, max_to_keep: int | None, keep_every_n_hours: float | None = None) -> None:
        if max_to_keep is not None and arguments.check_int("Saver", "max_to_keep", max_to_keep) < 0:
            raise ValueError(f"Saver requires max_to_keep >= 0 (0 or None keeps all), got {max_to_keep}.")
        name = "keep_checkpoint_every_n_hours"
        if keep_every_n_hours is not None and arguments.check_number("Saver", name, keep_every_n_hours) <= 0:
            raise ValueError(f"Saver requires keep_checkpoint_every_n_hours > 0 (or None), got {keep_every_n_hours}.")
        if keep_every_n_hours == math.inf:
            keep_every_n_hours = None
        if max_to_keep is not None and max_to_keep > LARGEST:
            max_to_keep = None
        self._max_to_keep = max_to_keep or None
        self._hours = keep_every_n_hours
        self._period_secs = None if keep_every_n_hours is None else keep_every_n_hours * _SECS_PER_HOUR
        self.kept: list[KeptCheckpoint] = []
        self.preserved: float | None = None
        self.last_good: str | None = None
        self.best: str | None = None
        self._keeps_best_forever = False
        self.lost_best: str | None = None
        self._not_yet_good: list[KeptCheckpoint] = []

    def clone(self) -> Retention:
        """Returns the same rule, with no checkpoints."""
        return Retention(self._max_to_keep, self._hours)

    @property
    def paths(self) -> list[str]:
        """The paths of the checkpoints that may still be removed later, oldest first."""
        return [kept.path for kept in self.kept]

    def state(self, newest: str) -> CheckpointState:
        """Returns the contents of the state file; `newest` is the newest checkpoint."""
        timestamps = tuple(kept.timestamp for kept in self.kept)
        rule = self._max_to_keep or 0, self._hours
        best = self.best, *rule, self.lost_best
        return CheckpointState(newest, tuple(self.paths), timestamps, self.last_good, self.preserved, *best)

    def recover(
        self,
        checkpoints: list[KeptCheckpoint],
        good: str | None = None,
        preserved: float | None = None,
        best: str | None = None,
    ) -> None:
        """Continues from the checkpoints of an earlier run, oldest first, and from its records of them."""
        self.kept = list(checkpoints)
        paths = [kept.path for kept in checkpoints]
        # Older checkpoints must not be marked as good later: the last marked one would count as the newest good one.
        self._not_yet_good = list(checkpoints[paths.index(good) + 1 :] if good in paths else checkpoints)
        self.preserved = preserved
        self.last_good = good
        self.best, self._keeps_best_forever = best, False

    def add(self, path: str, timestamp: float, extra: bool = False, step: int | None = None) -> list[str]:
        """Adds a new complete checkpoint; a known path was rewritten and is now the newest.

        Returns:
            The checkpoints to remove now, oldest first; never `path`, the last good one, nor the best.
        """
        new = KeptCheckpoint(path, timestamp, extra, step)
        self.kept = [old for old in self.kept if old.path != path] + [new]
        self._not_yet_good = [old for old in self._not_yet_good if old.path != path] + [new]
        return self.trim()

    def trim(self) -> list[str]:
        """Drops the surplus checkpoints, and returns those to remove, as `add` does."""
        stays = (self.kept[-1].path, self.last_good, self.best) if self.kept else ()
        extra = [kept.path for kept in self.kept if kept.extra]
        removed = [path for path in extra[:-1] if path not in stays]
        self.kept = [kept for kept in self.kept if kept.path not in removed]
        counted = [kept for kept in self.kept if not kept.extra]
        if self.preserved is None and self._period_secs is not None and counted:
            self.preserved = counted[0].timestamp
        for old in counted[: -self._max_to_keep] if self._max_to_keep else ():
            if old.path in stays:
                continue
            self.kept.remove(old)
            if not self._is_permanent(old):
                removed.append(old.path)
        self._not_yet_good = [kept for kept in self._not_yet_good if kept.path not in removed]
        return removed

    def _is_permanent(self, old: KeptCheckpoint) -> bool:
        """Returns whether a checkpoint is the first of its period; if so, it is never removed."""
        if self._period_secs is None or self.preserved is None:
            return False
        periods = (old.timestamp - self.preserved) // self._period_secs
        # The periods have a fixed grid: a late checkpoint does not delay the next period.
        self.preserved += max(periods, 0) * self._period_secs
        return periods >= 1

    def mark_good(self, step: int) -> None:
        """Records that a value computed from the weights of this step was good.

        Bad weights do not become good again, so all earlier ones were good too.
        """
        proven = [kept for kept in self._not_yet_good if kept.step is not None and kept.step <= step]
        if proven:
            self.last_good = proven[-1].path
            self._not_yet_good = [kept for kept in self._not_yet_good if kept not in proven]

    def mark_best(self, step: int | None) -> bool:
        """Keeps the checkpoint of this step as the best; returns whether there is one."""
        found = [kept.path for kept in self.kept if step is not None and kept.step == step]
        if found:
            if self._keeps_best_forever and self.best != found[-1]:
                self.kept = [kept for kept in self.kept if kept.path != self.best]
            self.best, self.lost_best, self._keeps_best_forever = found[-1], None, False
        return bool(found)

    def keep_best_forever(self) -> str | None:
        """Keeps the best checkpoint for good, even after another is marked, and returns it."""
        self._keeps_best_forever = self.best is not None
        return self.best

    def add_oldest(self, older: KeptCheckpoint) -> None:
        """Adds a checkpoint that is older than all others."""
        self.kept.insert(0, older)

    def mark_suspect(self, restored: str, step: int | None) -> None:
        """Records a rollback: the weights of this step are again those in `restored`.

        Checkpoints that are not known to be good by now never will be, except `restored`, which the next steps may
        still prove to be good.
        """
        self._not_yet_good = [kept._replace(step=step) for kept in self._not_yet_good if kept.path == restored]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checkpoints of a directory to remove and to keep.

    Attributes:
        keep: The number of newest checkpoints to keep.
        to_remove: The checkpoints to remove, oldest first.
        leftovers: The leftovers of killed processes, to be removed, too.
        state: The checkpoints to keep, as the contents of the state file.
    """

    keep: int
    to_remove: tuple[str, ...]
    leftovers: tuple[str, ...]
    state: CheckpointState


def plan(directory: str, keep: int | None = None) -> Plan:
    """Plans to keep the newest `keep` checkpoints of a directory, by default as many as the state file records.

    Raises:
        NotFoundError: There is no complete checkpoint, or no readable state file with the number to keep.
        FailedPreconditionError: It is not certain which checkpoint is the newest.
        ValueError: The state file does not record the number to keep, or the training keeps all.
        OpError: The directory cannot be read, or belongs to another program.
    """
    state, ambiguity = resolve_state(directory)
    if ambiguity:
        raise FailedPreconditionError.from_message(f"Nothing was removed from '{directory}': {ambiguity}.")
    if state is None:
        raise NotFoundError.from_message(f"'{directory}' has no complete checkpoint.")
    keep = _recorded_max_to_keep(state, directory) if keep is None else keep
    kept = [found for path in state.all_model_checkpoint_paths if (found := _read_kept(path)) is not None]
    if not kept:
        raise NotFoundError.from_message(f"'{directory}' has no checkpoint with a readable manifest.")
    paths = [found.path for found in kept]
    retention = Retention(keep, state.keep_checkpoint_every_n_hours)
    good, best = (path if path in paths else None for path in (state.last_good, state.best))
    retention.recover(kept, good, state.last_preserved_timestamp, best)
    to_remove = retention.trim()
    to_remove += [path for path in state.pending_removals if path not in to_remove]
    to_remove = [path for path in to_remove if not moves.removal_obstacle(path)]
    stays = retention.state(paths[-1])
    stays = dataclasses.replace(stays, max_to_keep=state.max_to_keep, lost_best=state.lost_best)
    left = [each.path for each in moves.removable_leftovers(paths[-1])]
    return Plan(keep, tuple(to_remove), tuple(left), stays)


def clean(directory: str, keep: int | None = None, wait_secs: float = 0.0) -> Plan:
    """Removes checkpoints and leftovers as in `plan`, and returns the plan.

    Before it removes a checkpoint, it verifies the newest one.

    Args:
        directory: The directory.
        keep: As in `plan`.
        wait_secs: The longest wait for the end of another process that saves there, in seconds.

    Raises:
        FailedPreconditionError: Another process saves there.
        DataLossError: The newest checkpoint is broken; nothing was removed.
        OpError, ValueError: As in `plan`; or a file cannot be removed.
    """
    plan(directory, keep)  # Before anything is written there.
    handle = lease.acquire_lease(directory, wait_secs)
    held = handle.lease
    try:
        found = plan(directory, keep)
        if found.to_remove:
            newest = restart.find(directory).candidates[0]  # It may have no readable manifest.
            try:
                layout.require_complete(newest)
                reading.verify(newest)
            except OpError as error:
                why = f"the newest checkpoint, '{newest}', is broken: {inspection.describe_error(error)}"
                raise type(error).from_message(f"Nothing was removed, because {why}. Move it away first.") from error
            with held.ensure_held():
                write_state(directory, dataclasses.replace(found.state, pending_removals=found.to_remove))
            for path in found.to_remove:
                with held.ensure_held():
                    moves.remove(path)
        with held.ensure_held():
            moves.clean(os.path.abspath(found.state.model_checkpoint_path))
        return found
    finally:
        handle()


def _recorded_max_to_keep(state: CheckpointState, directory: str) -> int:
    if read_state(directory) is None:
        there = os.path.exists(os.path.join(directory, STATE_FILE_NAME))
        why = "its state file cannot be read" if there else "it has no state file"
        raise NotFoundError.from_message(
            f"'{directory}': {why}, so the number to keep is unknown. Give it with --keep N."
        )
    found = state.max_to_keep
    if isinstance(found, int) and found > 0:
        return found
    why = "its training keeps all (max_to_keep=0)" if found == 0 else "its state file does not give the number to keep"
    raise ValueError(f"'{directory}': {why}. Give it with --keep N.")


def _read_kept(path: str) -> KeptCheckpoint | None:
    try:
        manifest = layout.read_manifest(path)[1]
    except OpError:
        return None
    return KeptCheckpoint(path, manifest.timestamp, manifest.extra, manifest.step)
