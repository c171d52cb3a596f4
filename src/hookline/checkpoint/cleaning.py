"""Cleaning a directory of checkpoints when no training runs there, by the rule that a `Saver` keeps."""

from __future__ import annotations

import dataclasses
import os

from hookline.checkpoint import examine, layout, lease, moves, reading, restart
from hookline.checkpoint.retention import Kept, Retention
from hookline.checkpoint.state_file import (
    STATE_FILE_NAME,
    CheckpointState,
    examined,
    leaving,
    recorded,
    write_state,
)
from hookline.errors import FailedPreconditionError, NotFoundError, OpError


@dataclasses.dataclass(frozen=True)
class Plan:
    """What goes and what stays.

    Attributes:
        keep: How many of the newest stay.
        going: The checkpoints that go, oldest first.
        leftovers: What killed processes left of others, and goes too.
        state: Those that stay, as the state file is to say it.
    """

    keep: int
    going: tuple[str, ...]
    leftovers: tuple[str, ...]
    state: CheckpointState


def plan(directory: str, keep: int | None = None) -> Plan:
    """Returns what goes from a directory if the newest `keep` stay: by default, as many as the state file records.

    Raises:
        NotFoundError: There is no complete checkpoint, or no state file that gives the number to keep.
        FailedPreconditionError: It is not certain which checkpoint is the newest.
        ValueError: The state file does not record how many.
        OpError: The directory cannot be read, or belongs to another program.
    """
    state, doubt = examined(directory)
    if doubt:
        raise FailedPreconditionError.from_message(f"Nothing was removed from '{directory}': {doubt}.")
    if state is None:
        raise NotFoundError.from_message(f"'{directory}' has no complete checkpoint.")
    keep = _recorded(state, directory) if keep is None else keep
    kept = [found for path in state.all_model_checkpoint_paths if (found := _kept(path)) is not None]
    if not kept:
        raise NotFoundError.from_message(f"'{directory}' has no checkpoint whose description can be read.")
    paths = [found.path for found in kept]
    retention = Retention(keep, state.keep_checkpoint_every_n_hours)
    good, best = (path if path in paths else None for path in (state.last_good, state.best))
    retention.recover(kept, good, state.last_preserved_timestamp, best)
    going = retention.trim()
    going += [path for path in leaving(directory) if path not in (*paths, *going) and layout.locate(path)]
    going = [path for path in going if not moves.may_remove(path)]
    stays = retention.state(paths[-1])
    stays = dataclasses.replace(stays, max_to_keep=state.max_to_keep, lost_best=state.lost_best)
    left = [each.path for each in moves.removable_leftovers(paths[-1])]
    return Plan(keep, tuple(going), tuple(left), stays)


def clean(directory: str, keep: int | None = None, wait_secs: float = 0.0) -> Plan:
    """Removes what `plan` says, and returns it. The newest checkpoint is read first if others go.

    Args:
        directory: The directory.
        keep: As of `plan`.
        wait_secs: How long to wait for the end of another process that saves there.

    Raises:
        FailedPreconditionError: Another process saves there.
        DataLossError: The newest checkpoint is broken; nothing was removed.
        OpError, ValueError: As in `plan`; or a file cannot be removed.
    """
    plan(directory, keep)  # Before anything is written there.
    share = lease.hold(directory, wait_secs)
    held = share.lease
    try:
        found = plan(directory, keep)
        if found.going:
            newest = restart.find(directory).candidates[0]  # It may have no description that can be read.
            try:
                layout.require_whole(newest)
                reading.verify(newest)
            except OpError as error:
                why = f"the newest checkpoint, '{newest}', is broken: {examine.reason(error)}"
                raise type(error).from_message(f"Nothing was removed, because {why}. Move it away first.") from error
            with held.changing():
                write_state(directory, found.state, leaving=found.going)
            for path in found.going:
                with held.changing():
                    moves.remove(path)
        with held.changing():
            moves.clean(os.path.abspath(found.state.model_checkpoint_path))
        return found
    finally:
        share()


def _recorded(state: CheckpointState, directory: str) -> int:
    if recorded(directory) is None:
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


def _kept(path: str) -> Kept | None:
    try:
        manifest = layout.read_manifest(path)[1]
    except OpError:
        return None
    return Kept(path, manifest.timestamp, manifest.extra, manifest.step)
