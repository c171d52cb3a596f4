"""Chooses and restores the checkpoint of a new session."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from hookline import arguments, log
from hookline.checkpoint import Saver
from hookline.checkpoint.directory import collective, layout, lease
from hookline.checkpoint.directory.state_file import resolve_state, write_state
from hookline.checkpoint.restoring import restart
from hookline.checkpoint.restoring.restart import Restart
from hookline.checkpoint.saving import contents, moves
from hookline.checkpoint.saving.save_operation import finish_saves
from hookline.errors import PREEMPTION_ERRORS, DataLossError, OpError, from_exception
from hookline.session import Session

logger = log.get_logger(__name__)

LATEST, LATEST_VALID = "latest", "latest-valid"
"""The checkpoint to restore: the newest, or the newest readable one."""


def check_restore_arguments(
    checkpoint_dir: str | None, checkpoint_filename_with_path: str | None, restore: str
) -> None:
    """Checks the arguments that select the checkpoint to restore.

    Raises:
        TypeError: `checkpoint_dir` or `checkpoint_filename_with_path` is not a path.
        ValueError: Both are given, or `restore` has an undocumented value.
    """
    arguments.check_path("Restoring", "checkpoint_dir", checkpoint_dir, optional=True)
    arguments.check_path("Restoring", "checkpoint_filename_with_path", checkpoint_filename_with_path, optional=True)
    if checkpoint_dir and checkpoint_filename_with_path:
        raise ValueError(
            "Restoring requires at most one of checkpoint_dir and checkpoint_filename_with_path, got "
            f"{checkpoint_dir!r} and {checkpoint_filename_with_path!r}."
        )
    check_restore("Restoring", restore)


def check_restore(who: str, restore: Any) -> None:
    """Raises `ValueError` for an undocumented value of `restore`."""
    if restore not in (LATEST, LATEST_VALID):
        raise ValueError(f"{who} requires restore={LATEST!r} or {LATEST_VALID!r}, got {restore!r}.")


def _candidates(saver: Saver, directory: str, wait: Callable[[str], Any] | None) -> Restart:
    """Returns the checkpoints of a directory that may be restored, the newest first."""
    _finish_pending(saver)
    finish_saves(directory)

    def find() -> tuple[Any, ...]:
        if wait is not None:
            wait(directory)
        return dataclasses.astuple(restart.find(directory))

    # In SPMD the chief decides from which checkpoint all processes continue.
    found, anomaly = collective.current().run_on_chief(find)
    return Restart(tuple(found), anomaly)


def restore_newest(
    session: Session,
    saver: Saver | None,
    directory: str | None,
    path: str | None,
    restore: str,
    wait: Callable[[str], Any] | None,
) -> str | None:
    """Restores the newest readable checkpoint, and returns its path; None without one.

    After another one was restored, the process that has the lease on the directory moves broken checkpoints aside.

    Args:
        session: The session.
        saver: The saver that restores; None restores nothing.
        directory: The directory of the checkpoints.
        path: A checkpoint to restore, in place of a directory.
        restore: As in `ChiefSessionCreator`.
        wait: Waits until a directory has a checkpoint; None does not wait.
    """
    if saver is None or not (path or directory):
        return None
    found = _candidates(saver, directory, wait) if directory else Restart((path,) if path else (), "")
    broken: list[tuple[str, DataLossError]] = []
    others = collective.current()
    for source in found.candidates:
        logger.info("Restoring %s", source)
        try:
            if directory:
                others.run_on_chief(functools.partial(layout.require_complete, source))
            saver.restore(session, source)
        except DataLossError as error:
            if restore != LATEST_VALID or not directory:
                raise _add_advice(error, directory) from error
            broken.append((source, error))
            continue
        session.origin = f"restored from {source}"
        if directory:
            aside = others.run_on_chief(lambda: _quarantine(directory, broken))
            reason = "; ".join(filter(None, (found.anomaly, aside)))
            if reason and others.is_chief:
                logger.error("The training in '%s' continues from '%s', because %s", directory, source, reason)
            adopt_checkpoints(saver, directory, write=bool(reason))
        return source
    if broken:
        raise DataLossError.from_message(
            f"None of the checkpoints in '{directory}' can be read; to start over, use another directory. The "
            f"newest: {broken[0][1]}",
        ) from broken[0][1]
    if found.anomaly and others.is_chief:
        logger.error(
            "The training in '%s' starts over, because %s: there is no other checkpoint.", directory, found.anomaly
        )
    if directory:
        saver.recover_last_checkpoints(())  # Checkpoints of an earlier session in another directory stay there.
    return None


def _add_advice(error: DataLossError, directory: str | None) -> DataLossError:
    if not directory:
        return error
    return DataLossError.from_message(
        f"{error} To continue from the newest readable one, start with restore={LATEST_VALID!r} (of "
        "CheckpointOptions and ChiefSessionCreator).",
    )


def _quarantine(directory: str, broken: Sequence[tuple[str, DataLossError]]) -> str:
    """Moves broken checkpoints aside if this process has the lease; returns a description of the changes."""
    changes = []
    held = lease.get_lease(directory)
    for path, error in broken:
        if held is None:
            changes.append(f"'{path}' is skipped: {error}")
        else:
            with held.ensure_held():
                changes.append(f"'{path}' is skipped, and was moved to '{moves.move_aside(path)}': {error}")
    return "; ".join(changes)


def adopt_checkpoints(saver: Saver, directory: str, write: bool = False) -> None:
    """Makes a saver manage the checkpoints of a directory; with `write`, corrects the state file."""
    state, _ = resolve_state(directory)
    if state is None:
        return
    saver.recover_last_checkpoints(
        state.all_model_checkpoint_paths,
        last_good=state.last_good,
        last_preserved_timestamp=state.last_preserved_timestamp,
        best=state.best or state.lost_best,
    )
    held = lease.get_lease(directory)
    if write and held is not None:
        with held.ensure_held():
            write_state(directory, state)


def continue_lineage(session: Session, directory: str) -> None:
    """Sets the lineage of a session on parameter servers to continue the checkpoints of a directory."""
    state, _ = resolve_state(directory)
    if state is not None:
        with contextlib.suppress(OpError):  # A restore of this checkpoint raises the error.
            contents.begin_from(session, layout.read_manifest(state.model_checkpoint_path)[1].lineage)


def _finish_pending(saver: Saver) -> None:
    """Waits for a save of the previous session, which may become the newest checkpoint; logs a lost save."""
    try:
        saver.wait()
    except Exception as exc:
        if not isinstance(from_exception(exc), PREEMPTION_ERRORS):
            raise
        logger.warning("The checkpoint that was being written when the session was lost is lost too: %s", exc)
