"""Retention: the choice of checkpoints to keep and to remove."""

from __future__ import annotations

import math
from typing import NamedTuple

from hookline import arguments
from hookline.checkpoint.schema import LARGEST
from hookline.checkpoint.state_file import CheckpointState

_SECS_PER_HOUR = 3600.0


class Kept(NamedTuple):
    """A complete checkpoint: its path, the time of writing, and the number of completed steps, if known.

    An extra one is not counted; only the newest of them stays.
    """

    path: str
    timestamp: float
    extra: bool = False
    step: int | None = None


class Retention:
    """The checkpoints that a saver keeps, oldest first, and the rule for removing old ones. Touches no files.

    The newest checkpoint that has proved good stays in addition to the counted ones, until a newer one proves good; so
    does the best, until another one is named.

    Attributes:
        good: The newest checkpoint that has proved good; None if none has.
        best: The checkpoint that was named the best; None if none was.
        lost_best: The one that was, if it is gone and no other has been named since.
        preserved: The time up to which each period has its permanent checkpoint, in seconds since the epoch; at first
            the time of the oldest checkpoint, None before there is one.
    """

    def __init__(self, max_to_keep: int | None, keep_every_n_hours: float | None = None) -> None:
        if max_to_keep is not None and arguments.whole("Saver", "max_to_keep", max_to_keep) < 0:
            raise ValueError(f"Saver requires max_to_keep >= 0 (0 or None keeps all), got {max_to_keep}.")
        name = "keep_checkpoint_every_n_hours"
        if keep_every_n_hours is not None and arguments.number("Saver", name, keep_every_n_hours) <= 0:
            raise ValueError(f"Saver requires keep_checkpoint_every_n_hours > 0 (or None), got {keep_every_n_hours}.")
        if keep_every_n_hours == math.inf:
            keep_every_n_hours = None
        if max_to_keep is not None and max_to_keep > LARGEST:
            max_to_keep = None
        self._max_to_keep = max_to_keep or None
        self._hours = keep_every_n_hours
        self._period_secs = None if keep_every_n_hours is None else keep_every_n_hours * _SECS_PER_HOUR
        self._kept: list[Kept] = []
        self.preserved: float | None = None
        self.good: str | None = None
        self.best: str | None = None
        self._spares_best = False
        self.lost_best: str | None = None
        self._unproven: list[Kept] = []

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The checkpoints that may still be removed later, oldest first."""
        return tuple(self._kept)

    @property
    def paths(self) -> list[str]:
        """Their paths."""
        return [kept.path for kept in self._kept]

    def state(self, newest: str) -> CheckpointState:
        """Returns the contents for a state file."""
        timestamps = tuple(kept.timestamp for kept in self._kept)
        rule = self._max_to_keep or 0, self._hours
        best = self.best, *rule, self.lost_best
        return CheckpointState(newest, tuple(self.paths), timestamps, self.good, self.preserved, *best)

    def recover(
        self, checkpoints: list[Kept], good: str | None = None, preserved: float | None = None, best: str | None = None
    ) -> None:
        """Starts from the checkpoints of an earlier run, oldest first, and from its knowledge of them."""
        self._kept = list(checkpoints)
        paths = [kept.path for kept in checkpoints]
        # Older checkpoints must not prove good afterwards, because the last one proved would count as the newest.
        self._unproven = list(checkpoints[paths.index(good) + 1 :] if good in paths else checkpoints)
        self.preserved = preserved
        self.good = good
        self.best, self._spares_best = best, False

    def add(self, path: str, timestamp: float, extra: bool = False, step: int | None = None) -> list[str]:
        """Adds a new complete checkpoint; a known path was rewritten and is now the newest.

        Returns:
            The checkpoints to remove now, oldest first; never `path`, the newest that has proved good, nor the best.
        """
        new = Kept(path, timestamp, extra, step)
        self._kept = [old for old in self._kept if old.path != path] + [new]
        self._unproven = [old for old in self._unproven if old.path != path] + [new]
        return self.trim()

    def trim(self) -> list[str]:
        """Lets those go that are too many, and returns them as `add` does."""
        stays = (self._kept[-1].path, self.good, self.best) if self._kept else ()
        extra = [kept.path for kept in self._kept if kept.extra]
        removed = [path for path in extra[:-1] if path not in stays]
        self._kept = [kept for kept in self._kept if kept.path not in removed]
        counted = [kept for kept in self._kept if not kept.extra]
        if self.preserved is None and self._period_secs is not None and counted:
            self.preserved = counted[0].timestamp
        for old in counted[: -self._max_to_keep] if self._max_to_keep else ():
            if old.path in stays:
                continue
            self._kept.remove(old)
            if not self._is_for_good(old):
                removed.append(old.path)
        self._unproven = [kept for kept in self._unproven if kept.path not in removed]
        return removed

    def _is_for_good(self, old: Kept) -> bool:
        """Returns whether a checkpoint is the first of its period; if so, it stays for good."""
        if self._period_secs is None or self.preserved is None:
            return False
        periods = (old.timestamp - self.preserved) // self._period_secs
        # The periods do not depend on when checkpoints come: a late one does not delay the next period.
        self.preserved += max(periods, 0) * self._period_secs
        return periods >= 1

    def prove(self, step: int) -> None:
        """Records that a value computed from the weights of this step was good.

        Bad weights do not become good again, so all earlier ones were good too.
        """
        proven = [kept for kept in self._unproven if kept.step is not None and kept.step <= step]
        if proven:
            self.good = proven[-1].path
            self._unproven = [kept for kept in self._unproven if kept not in proven]

    def prefer(self, step: int | None) -> bool:
        """Keeps the checkpoint of this step as the best; returns whether there is one."""
        found = [kept.path for kept in self._kept if step is not None and kept.step == step]
        if found:
            if self._spares_best and self.best != found[-1]:
                self._kept = [kept for kept in self._kept if kept.path != self.best]
            self.best, self.lost_best, self._spares_best = found[-1], None, False
        return bool(found)

    def spare_best(self) -> str | None:
        """Keeps the best checkpoint for good, also when another is named, and returns it."""
        self._spares_best = self.best is not None
        return self.best

    def adopt(self, older: Kept) -> None:
        """Adds a checkpoint that is older than all others."""
        self._kept.insert(0, older)

    def doubt(self, restored: str, step: int | None) -> None:
        """Records that the weights of this step are again those in `restored`: the steps since then are undone.

        Checkpoints that have not proved good by now never will, except `restored`, which the next steps may still
        prove.
        """
        self._unproven = [kept._replace(step=step) for kept in self._unproven if kept.path == restored]
