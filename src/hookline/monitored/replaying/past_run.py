"""PastRun: the checkpoints of a run, from which its steps can be replayed; it only reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from hookline.checkpoint import latest_checkpoint
from hookline.checkpoint.directory import collective, layout
from hookline.checkpoint.directory.manifest import Manifest
from hookline.checkpoint.directory.state_file import CheckpointState, write_state
from hookline.errors import DataLossError, NotFoundError
from hookline.units import format_count

_MOST_NAMED = 10


class SavedStep(NamedTuple):
    """A checkpoint of the history of a run.

    Args:
        step: Its global step.
        path: Its path.
        manifest: Its manifest, which is kept: a running training may remove the checkpoint meanwhile.
    """

    step: int
    path: str
    manifest: Manifest


class PastRun:
    """The history of a run, as far as its checkpoints are left. It only reads in the folder.

    SPMD processes find the same history, also while a training goes on in the folder: they call all methods together.

    Args:
        folder: The folder of the run.

    Attributes:
        folder: As above.
        saved: The checkpoints that led to the newest one, and itself, oldest first.

    Raises:
        NotFoundError: The folder has no checkpoint.
        OpError: The newest checkpoint cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self.folder = layout.in_file_system("replay", "folder", folder)
        found: list[SavedStep] = []
        every = collective.current().run_on_all(
            lambda: found.extend(_history(self.folder)) or [one.path for one in found]
        )
        common = set.intersection(*map(set, every))
        self.saved: Sequence[SavedStep] = [each for each in found if each.path in common]

    def begin_at(self, first: int, last: int) -> list[SavedStep]:
        """Returns the checkpoints at or before a step, the newest first.

        Raises:
            NotFoundError: There is none; the message has the steps that can be replayed.
        """
        found = [each for each in self.saved if each.step <= first]
        if not found:
            raise NotFoundError.from_message(
                f"Steps {first:,} to {last:,} of '{self.folder}' cannot be replayed: no checkpoint at or before step "
                f"{first:,} is left. {format_count(len(self.saved), 'checkpoint')} left: at {self.describe_steps()}; a "
                f"replay can begin at each. max_to_keep of the run decides how many are kept."
            )
        return found[::-1]

    def describe_steps(self) -> str:
        """Describes the steps of the checkpoints at which a replay can begin."""
        steps = [f"{each.step:,}" for each in self.saved]
        return ", ".join(steps[:_MOST_NAMED]) + (" and so on" if len(steps) > _MOST_NAMED else "")

    def on_the_way(self, start: int, last: int) -> list[SavedStep]:
        """Returns the checkpoints after a step, up to another one."""
        return [each for each in self.saved if start < each.step <= last]

    def hold(self, first: int, last: int, into: str) -> SavedStep:
        """Puts the checkpoint to begin at, and the one before it, into another folder, as if a training had saved them.

        They are hard links where the file system allows it. So the run may go on, and remove its own.

        Args:
            first: The step at or before which the checkpoint is.
            last: The last step, for messages.
            into: The folder.
        """
        found = self.begin_at(first, last)
        held = [found[index] for index in collective.current().run_on_chief(lambda: _hold_two(found, into))]
        if not held:
            raise NotFoundError.from_message(
                f"Steps {first:,} to {last:,} of '{self.folder}' cannot be replayed: the training that goes on there "
                f"has just removed the checkpoints at or before step {first:,}. Ask for later steps."
            )
        paths = tuple(os.path.join(into, os.path.basename(each.path)) for each in held)
        times = tuple(each.manifest.timestamp for each in held)
        state = CheckpointState(paths[-1], paths, times, last_good=paths[0] if len(paths) == 2 else None)
        collective.current().run_on_chief(lambda: write_state(into, state))
        return held[-1]


def _history(folder: str) -> list[SavedStep]:
    """Returns the checkpoints that led to the newest one, and itself, oldest first."""
    newest = latest_checkpoint(folder)
    if newest is None:
        raise NotFoundError.from_message(
            f"Nothing of '{folder}' can be replayed: it has no checkpoint. Give the folder of a run."
        )
    base, lineage = layout.base_path(os.path.basename(newest)), layout.read_manifest(newest)[1].lineage
    found: list[SavedStep] = []
    for name in layout.checkpoint_names(folder):
        path = os.path.join(folder, name)
        try:
            manifest = layout.read_manifest(path)[1]
        except (DataLossError, NotFoundError):  # Broken, or just removed.
            continue
        # A process that was killed may have left checkpoints that led to nothing.
        if manifest.step is not None and layout.base_path(name) == base and lineage.follows(manifest.lineage):
            found.append(SavedStep(manifest.step, path, manifest))
    return sorted(found, key=lambda each: each.manifest.lineage.save_number)


def _hold_two(found: Sequence[SavedStep], into: str) -> list[int]:
    """Holds the first two of some checkpoints that are still there; returns their indices, the later one first."""
    held: list[int] = []
    for index, each in enumerate(found):
        if _hold(each.path, os.path.join(into, os.path.basename(each.path))):
            held.insert(0, index)
        if len(held) == 2:  # A rollback may return to the one before.
            break
    return held


def _hold(path: str, at: str) -> bool:
    """Links or copies a checkpoint to another path; returns whether it is still there."""
    directory = layout.locate(path)
    try:
        if directory is not None:
            shutil.copytree(directory, at, copy_function=_link_or_copy)
            return True
    except (OSError, shutil.Error):
        shutil.rmtree(at, ignore_errors=True)
        if layout.locate(path) is not None:
            raise
    return False


def _link_or_copy(source: str, to: str) -> str:
    try:
        os.link(source, to)
    except FileNotFoundError:
        raise
    except OSError:  # Another file system, or one without links.
        shutil.copyfile(source, to)
    return to
