"""The checkpoints of a saver on the disk: their leases, state files, and the removal of old ones."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import threading
import weakref
from collections.abc import Iterable

from hookline import log
from hookline.checkpoint.directory import layout, lease
from hookline.checkpoint.directory.layout import base_path
from hookline.checkpoint.directory.lease import Lease
from hookline.checkpoint.directory.manifest import Lineage
from hookline.checkpoint.directory.state_file import STATE_FILE_NAME, CheckpointState, read_state, write_state
from hookline.checkpoint.saving import moves
from hookline.checkpoint.saving.failures import RetryPolicy
from hookline.checkpoint.saving.retention import KeptCheckpoint, Retention
from hookline.coordination import process_group
from hookline.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from hookline.session import Session

_logger = log.get_logger(__name__)

_ONCE = RetryPolicy(max_attempts=1)


class CheckpointManager:
    """Manages the directories of a saver: takes their leases, writes state files, removes old checkpoints.

    `Retention` decides which checkpoints are kept. They may be in several directories.

    Args:
        name: The name of the saver, for messages.
        retention: The rule, and the checkpoints that it has chosen so far.
        lock_timeout_secs: The longest wait for another process that saves its checkpoints in a directory.
    """

    def __init__(self, name: str, retention: Retention, lock_timeout_secs: float) -> None:
        self.name, self._retention, self._lease_wait_secs = name, retention, lock_timeout_secs
        self._lease_sessions: dict[str, weakref.WeakSet[Session]] = {}
        self._good_step: int | None = None
        self._best_step: int | None = None
        self._lock = threading.Lock()
        self._state_file = STATE_FILE_NAME
        self._cleaned: set[str] = set()
        # Checkpoints that a killed process still had to remove; they are removed once there is a newer checkpoint.
        self._pending_removals: list[str] = []
        # Checkpoints that this saver has written: it may remove them from any directory.
        self._written: set[str] = set()
        # Recorded checkpoints that were broken when this saver began to save in their directory.
        self._broken: set[str] = set()

    def clone(self) -> CheckpointManager:
        """Returns a manager with the same rule, and no checkpoints."""
        return CheckpointManager(self.name, self._retention.clone(), self._lease_wait_secs)

    # The checkpoints --------------------------------------------------------------------------------------------

    @property
    def paths(self) -> list[str]:
        """The checkpoints that may still be removed, oldest first."""
        return self._retention.paths

    @property
    def last_good(self) -> str | None:
        """The newest checkpoint that is known to be good; None if there is none."""
        self._mark_good_step(self._retention)
        return self._retention.last_good

    def recover(self, paths: Iterable[str], good: str | None, preserved: float | None, best: str | None) -> None:
        """Takes over the checkpoints of an earlier run; see `Saver.recover_last_checkpoints`."""
        found = []
        for path in filter(layout.locate, paths):
            try:
                manifest = layout.read_manifest(path)[1]
                found.append(KeptCheckpoint(path, manifest.timestamp, manifest.extra, manifest.step))
            except OpError as error:
                _logger.warning("%s leaves this checkpoint alone: %s", self.name, error)
        self._good_step = self._best_step = None
        there = [kept.path for kept in found]
        lost = best if best not in there else None
        good, best = (path if path in there else None for path in (good, best))
        self._retention.recover(found, good, preserved, best)
        if lost is not None:
            self._record_lost_best(lost)

    def mark_good(self, step: int) -> None:
        """See `Saver.mark_good`."""
        self._good_step = step  # The only field that another thread may read in the meantime.

    def mark_best(self, step: int | None) -> None:
        """See `Saver.mark_best`."""
        if step is None:
            with self._lock:
                best = self._retention.keep_best_forever()
            if best is not None and process_group.is_primary():
                _logger.warning("'%s', the best checkpoint so far, is never removed: its value is unknown here.", best)
            return
        self._best_step = step
        self._write_best()

    def recover_best(self, step: int, path: str, last: Lineage | None) -> bool:
        """See `Saver.recover_best`; `path` is the checkpoint of that step, if there is one that led to `last`."""
        try:
            manifest = layout.read_manifest(path)[1]
        except (NotFoundError, DataLossError, InvalidArgumentError):
            manifest = None
        if manifest is None or not (last is None or last.follows(manifest.lineage)):
            self._record_lost_best(path)
            return False
        if not any(kept.step == step for kept in self._retention.kept):
            self._retention.add_oldest(KeptCheckpoint(path, manifest.timestamp, manifest.extra, step))
        self.mark_best(step)
        return True

    def _record_lost_best(self, path: str) -> None:
        if self._retention.lost_best != path and process_group.is_primary():
            _logger.warning(
                "The best checkpoint, '%s', is gone or broken. train.Evaluate(..., keep_best=...) keeps the best of "
                "the next evaluations.",
                path,
            )
        self._retention.lost_best = path

    def mark_suspect(self, restored: str, step: int | None) -> None:
        """Records that the weights of this step are again those in `restored`; see `Retention.mark_suspect`."""
        self._good_step = None
        self._retention.mark_suspect(restored, step)

    def knows(self, path: str, state_file: str) -> bool:
        """Returns whether the saver or the state file has recorded a checkpoint at this path."""
        state = read_state(os.path.dirname(path) or ".", state_file)
        known = self._broken | set(map(os.path.abspath, self._retention.paths))
        return os.path.abspath(path) in (known if state is None else known | _paths_of(state))

    def _mark_good_step(self, retention: Retention) -> None:
        if self._good_step is not None:
            retention.mark_good(self._good_step)

    # A save -----------------------------------------------------------------------------------------------------

    def acquire(self, sess: Session | None, path: str, state_file: str, until: contextlib.ExitStack) -> Lease:
        """Takes the lease of the directory, at least until both the session and the stack are closed.

        Before the first checkpoint of a name, it removes the leftovers of killed processes.
        """
        directory = os.path.dirname(os.path.abspath(path))
        is_first = directory not in self._lease_sessions
        if is_first:
            read_state(os.path.dirname(path) or ".", state_file)  # Refuses a directory of another program.
        handle = lease.acquire_lease(directory, self._lease_wait_secs, path)
        until.callback(handle)
        if is_first and sess is not None:
            self._warn_of_earlier(directory, path, sess)
        sessions = self._lease_sessions.setdefault(directory, weakref.WeakSet())
        if sess is not None and sess not in sessions and not sess.closed:
            sessions.add(sess)
            sess.backend.close_callbacks.append(lease.LeaseHandle(handle.lease))
        if (base := base_path(os.path.abspath(path))) not in self._cleaned:
            self._clean(base, os.path.dirname(path) or ".", state_file, handle.lease)
        return handle.lease

    def _warn_of_earlier(self, directory: str, path: str, sess: Session) -> None:
        """Warns if the directory has checkpoints of the same name that the session has not restored."""
        known = [*self._retention.paths, *filter(None, [sess.backend.restored[0]])]
        if os.path.realpath(directory) in {os.path.realpath(os.path.dirname(found)) for found in known}:
            return
        name = os.path.basename(path)
        others = [
            other
            for other in layout.checkpoint_names(directory)
            if other != name and base_path(other) == base_path(name)
        ]
        if others:
            others.sort(key=lambda other: (len(other), other))
            _logger.warning(
                "%s begins to save in '%s' beside checkpoints that this session did not restore (%s): it neither "
                "counts nor removes them, and replaces those of the same step. To go on from the newest, restore it "
                "first: saver.restore(session, train.latest_checkpoint('%s')), or checkpoint_dir= of a monitored "
                "session or its creator. To start over, use another directory.",
                self.name,
                directory,
                ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else ""),
                directory,
            )

    def _clean(self, base: str, directory: str, state_file: str, held: Lease) -> None:
        """Removes the leftovers of killed processes, of checkpoints of this name."""
        with held.ensure_held():
            moves.clean(base)
        if (state := read_state(directory, state_file)) is not None:
            self._broken |= {path for path in _paths_of(state) if layout.defect(path)}
            self._pending_removals += state.pending_removals
        self._cleaned.add(base)

    def commit(self, new: KeptCheckpoint, state_file: str, lease: Lease | None, retry: RetryPolicy) -> None:
        """Adds a complete checkpoint; writes the state file and removes old ones, if this process has the lease."""
        with self._lock:
            retention = copy.deepcopy(self._retention)
            self._mark_good_step(retention)
            removed = retention.add(*new)
            self._mark_good_step(retention)
            retention.mark_best(self._best_step)
            removed += [old for old in self._pending_removals if old not in (*removed, *retention.paths)]
            if lease is not None:
                self._write_state(new.path, retention, state_file, lease, removed, retry)
            self._retention, self._pending_removals = retention, []
            self._written.add(os.path.abspath(new.path))
            for old in removed if lease is not None else ():
                self._remove(old, new.path)
        self._write_best()  # The best may have been marked in the meantime.

    def _remove(self, old: str, new: str) -> None:
        """Removes a checkpoint that this saver has written, or that hookline wrote in the new one's directory."""
        old_path, beside = os.path.abspath(old), os.path.dirname(os.path.abspath(new))
        directory, is_own = os.path.dirname(old_path), old_path in self._written
        is_elsewhere = not is_own and directory != beside
        if stays := "it is in another directory" if is_elsewhere else moves.removal_obstacle(old, is_own=is_own):
            _logger.warning("%s does not remove '%s': %s.", self.name, old, stays)
            return
        with contextlib.ExitStack() as until_removed:
            try:
                handle = lease.acquire_lease(directory, 0)
                until_removed.callback(handle)
            except OpError as error:
                _logger.warning("%s leaves '%s' where it is: %s", self.name, old, error)
                return
            try:  # One attempt: the next save tries again, and retries for each such checkpoint would slow down a save.
                with handle.lease.ensure_held():
                    moves.remove(old)
                self._written.discard(old_path)
            except (OSError, OpError) as error:
                _logger.warning("'%s' could not be removed, and stays until the next save: %s", old, error)
                self._pending_removals.append(old)

    # The state file ---------------------------------------------------------------------------------------------

    def _write_state(
        self, newest: str, retention: Retention, state_file: str, lease: Lease, leaving: list[str], retry: RetryPolicy
    ) -> None:
        directory, self._state_file = os.path.dirname(newest) or ".", state_file
        state = dataclasses.replace(retention.state(newest), pending_removals=tuple(leaving))

        def write() -> None:
            with lease.ensure_held():
                write_state(directory, state, state_file)

        retry.attempt(write, os.path.join(directory, state_file))

    def _write_best(self) -> None:
        """Writes the best checkpoint into the state file, if it has changed; only once, because a training waits."""
        if not self._lock.acquire(blocking=False):
            return  # Another thread completes a save, and calls this afterwards.
        try:
            before = self._retention.best
            if not self._retention.mark_best(self._best_step) or self._retention.best == before:
                return
            newest = self._retention.paths[-1]
            held = lease.get_lease(os.path.dirname(os.path.abspath(newest)))
            if held is not None:  # Else this process no longer saves there.
                self._write_state(newest, self._retention, self._state_file, held, self._pending_removals, _ONCE)
        except OpError as error:
            best = self._retention.best
            _logger.warning("'%s' is the best checkpoint; only the next save can record that: %s", best, error)
        finally:
            self._lock.release()


def _paths_of(state: CheckpointState) -> set[str]:
    return set(map(os.path.abspath, (state.model_checkpoint_path, *state.all_model_checkpoint_paths)))
