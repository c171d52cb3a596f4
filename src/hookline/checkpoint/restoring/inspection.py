"""Inspection of checkpoints, broken or not, without changing a directory or disturbing its writer."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hookline.checkpoint.directory import layout, lease
from hookline.checkpoint.directory import owner_file as owner
from hookline.checkpoint.directory.leaves import Match
from hookline.checkpoint.directory.manifest import FILE_NAME, Leaf, Manifest
from hookline.checkpoint.directory.owner_file import Owner
from hookline.checkpoint.directory.state_file import CheckpointState, get_checkpoint_state, read_state
from hookline.checkpoint.restoring import reading, restart
from hookline.errors import FailedPreconditionError, NotFoundError, OpError, PermissionDeniedError

_FILE = re.compile(r'local file "[^"]*?/(state/[^"]*|[^/"]*)"')
_DENIED = "cannot be read: Permission denied"
_UNFINISHED = {
    "writing": "it is half-written",
    "saving": "it is half-written",
    "replaced": "a newer one has replaced it, and it is half-removed",
    "removed": "it is half-removed",
    "broken": "it was moved aside because it was broken",
}

AT_ONCE_BYTES = 32 * 2**20
"""The number of bytes that `read_values` reads at once, unless the largest leaf has more."""


@dataclasses.dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint, or the remains of one.

    Attributes:
        path: Its path.
        manifest: Its manifest; None if there is no readable one.
        defect: Its defect, as a clause; empty if it is complete. The arrays are not checked.
        is_unfinished: Whether it is being saved or removed, or such an operation was interrupted, so that nothing reads
            it as a checkpoint.
        nbytes: The size of its files.
        timestamp: The time when it became complete, or else of its last change, in seconds since the epoch.
    """

    path: str
    manifest: Manifest | None
    defect: str
    is_unfinished: bool
    nbytes: int
    timestamp: float

    @property
    def name(self) -> str:
        """The last part of its path."""
        return os.path.basename(self.path)

    @property
    def step(self) -> int | None:
        """The number of completed steps, from its manifest or else from its name."""
        if self.manifest is not None:
            return self.manifest.step
        number = re.search(r"-(\d+)(\.hookline-|$)", self.name)
        return int(number[1]) if number else None


class Writer(NamedTuple):
    """The process that has, or had, the lease of a directory; `is_running` is None if only heartbeats would show it."""

    owner: Owner
    is_running: bool | None


@dataclasses.dataclass(frozen=True)
class DirectoryContents:
    """The contents of a directory.

    Attributes:
        directory: Its path.
        checkpoints: All checkpoints, newest first.
        restore_target: The checkpoint that a training would restore, broken or not; None if there is none.
        newest: The newest complete checkpoint; None if there is none.
        state: The complete checkpoints, as a training would find them; None if there are none.
        anomaly: The problem with the state file, as a clause; empty if there is none.
        notes: The anomaly, and the differences between the state file and the directory, as clauses.
        writer: The process that saves there, or ended while it did; None if there is none.
    """

    directory: str
    checkpoints: tuple[FoundCheckpoint, ...]
    restore_target: FoundCheckpoint | None
    newest: FoundCheckpoint | None
    state: CheckpointState | None
    anomaly: str
    notes: tuple[str, ...]
    writer: Writer | None


def inspect_directory(directory: str) -> DirectoryContents:
    """Inspects a directory.

    Raises:
        OpError: It cannot be read.
    """
    # Before the rest: if the writer ends meanwhile, no checkpoint is half-written any more.
    writer = current_writer(directory)
    state, anomaly, named = None, "", ()
    try:
        state, found = get_checkpoint_state(directory), restart.find(directory)
        anomaly, named = found.anomaly, found.candidates
    except FailedPreconditionError as error:
        anomaly = str(error).removesuffix(".")
    except PermissionDeniedError as error:  # Perhaps for one checkpoint only: show the others.
        anomaly = str(error).removesuffix(".")
    unfinished = {left.path: _UNFINISHED[left.kind] for left in layout.leftovers(directory)}
    valid = [os.path.join(directory, name) for name in layout.checkpoint_names(directory)]
    there = [os.path.join(directory, entry) for entry in layout.subdirectories(directory)]
    defective = [path for path in there if path not in unfinished and _looks_like_checkpoint(path) and _defect(path)]
    complete = {*valid, *named, *defective}
    for path in valid:  # A complete checkpoint that is about to get its final name.
        unfinished.pop(path + layout.SAVING_SUFFIX, None)
    each = [_found_complete(path) for path in complete] + [
        _found_incomplete(path, why, True) for path, why in unfinished.items()
    ]
    known = [checkpoint for checkpoint in each if checkpoint is not None]
    known.sort(key=lambda found: (-1 if found.step is None else found.step, found.timestamp), reverse=True)
    by_path = {found.path: found for found in known if not found.is_unfinished}
    to_restore = [by_path[path] for path in named if path in by_path]
    newest = next((found for found in to_restore if found.manifest is not None), None)
    restore_target = next(iter(to_restore), None)
    notes = [anomaly] if anomaly else []
    if state is not None and (writer is None or writer.is_running is False):  # Else the writer will update the file.
        notes += _differences(directory, state, known)
    return DirectoryContents(directory, tuple(known), restore_target, newest, state, anomaly, tuple(notes), writer)


def _differences(directory: str, state: CheckpointState, known: Iterable[FoundCheckpoint]) -> Iterator[str]:
    """Yields the differences between the state file and the directory, as clauses."""
    if (written := read_state(directory)) is None:
        return
    there = {found.path for found in known}
    gone = [path for path in written.all_model_checkpoint_paths if path not in there]
    if gone := [path for path in gone if path != written.model_checkpoint_path]:  # `Restart.anomaly` has that one.
        yield f"its state file names {_named(gone)}, which {'is' if len(gone) == 1 else 'are'} not there"
    base = layout.base_path(state.model_checkpoint_path)
    listed = {*state.all_model_checkpoint_paths, *written.pending_removals}
    valid = [found.path for found in known if found.manifest is not None and layout.base_path(found.path) == base]
    if unlisted := [path for path in valid if path not in listed]:
        yield f"its state file does not list {_named(unlisted)}, so no training removes {_them(unlisted)}"


def _named(paths: Iterable[str]) -> str:
    return ", ".join(map(os.path.basename, paths))


def _them(paths: list[str]) -> str:
    return "it" if len(paths) == 1 else "them"


def is_checkpoint(path: str) -> bool:
    """Returns whether there is a checkpoint at a path, or the remains of one; an empty folder may be anything."""
    if _defect(path) == f"it {_DENIED}":
        return layout.base_path(path) != path
    return layout.locate(path) is not None or (layout.looks_like_checkpoint(path) and bool(layout.entries(path)))


def inspect_checkpoint(path: str) -> FoundCheckpoint:
    """Inspects one checkpoint.

    Raises:
        OpError: There is none, or hookline did not write it.
    """
    if layout.locate(path) is None and not _looks_like_checkpoint(path):
        layout.read_manifest(path)  # Raises an error that describes the path.
    if (found := _found_complete(path)) is None:
        raise NotFoundError.from_message(f"'{path}' was removed just now.")
    return found


def current_writer(directory: str) -> Writer | None:
    """Returns the process that has the lease of a directory, by the owner file, without touching the lock."""
    found = owner.read(os.path.join(directory, lease.OWNER_NAME))
    if found is None:
        return None
    return Writer(found, not found.has_ended if found.has_comparable_pid else None)


def read_values(path: str, wanted: Iterable[Leaf]) -> Iterator[Any]:
    """Yields the value of each leaf of a checkpoint in turn, as it was saved, or the error that reading it raised.

    At most 32 MiB or one larger leaf are in memory at once. Arrays are NumPy's, and no device is needed. Each
    value has been compared with its checksum.

    Raises:
        NotFoundError: The checkpoint was removed meanwhile.
    """
    for part in reading.batch_leaves(wanted, AT_ONCE_BYTES):
        try:
            found: dict[str, Any] = _read(path, part)
        except NotFoundError:
            raise
        except OpError as error:
            found = {name: error if len(part) == 1 else _read_or_error(path, name) for name in part}
        for name in part:
            yield found.pop(name, _replaced(path, name))


def _read_or_error(path: str, name: str) -> Any:
    try:
        return _read(path, [name]).get(name, _replaced(path, name))
    except NotFoundError:
        raise
    except OpError as error:
        return error


def _read(path: str, part: Iterable[str]) -> dict[str, Any]:
    def choose(now: Manifest) -> dict[str, Match]:
        return reading.leaf_matches(now.leaves[name] for name in part if name in now.leaves)

    return reading.read(path, choose, on_host=True)


def _replaced(path: str, name: str) -> OpError:
    return NotFoundError.from_message(f"'{path}' was replaced just now by one without {name!r}.")


def describe_error(error: OpError) -> str:
    """Returns the reason of a read error, as a clause without the name of the checkpoint.

    A long message of TensorStore is reduced to the file and its defect.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.filename:
        what = "is missing" if isinstance(cause, FileNotFoundError) else f"cannot be read: {cause.strerror}"
        return f"its file {os.path.basename(cause.filename)} {what}"
    text = str(cause or error).strip().splitlines()[0].partition(" [tensorstore_spec")[0].removesuffix(".")
    *_, last = [None, *_FILE.finditer(text)]
    if last is None:
        return text
    what = "is missing" if text.startswith("NOT_FOUND") else "is damaged"
    if isinstance(error, PermissionDeniedError):
        what = _DENIED
    return f"its file {last[1]} {what}"


def is_permission_denied(defect: str) -> bool:
    """Returns whether a checkpoint's only known defect is that this user may not read it."""
    return defect.endswith(_DENIED)


def _defect(path: str) -> str:
    try:
        return layout.defect(path)
    except PermissionDeniedError:
        return f"it {_DENIED}"


def _looks_like_checkpoint(path: str) -> bool:
    try:
        return layout.looks_like_checkpoint(path)
    except PermissionDeniedError:
        return True  # By its name.


def _found_complete(path: str) -> FoundCheckpoint | None:
    if why := _defect(path):
        return _found_incomplete(path, why, False)
    try:
        directory, manifest = layout.read_manifest(path)
    except NotFoundError:  # It was removed meanwhile.
        return None
    except OpError as error:
        why = describe_error(error)
        return _found_incomplete(path, why if why.startswith("it") else f"its {FILE_NAME} cannot be read: {why}", False)
    return FoundCheckpoint(path, manifest, "", False, _nbytes(directory), manifest.timestamp)


def _found_incomplete(path: str, why: str, is_unfinished: bool) -> FoundCheckpoint | None:
    status = layout.stat_or_none(path)
    if status is None:
        return None
    return FoundCheckpoint(path, None, why, is_unfinished, _nbytes(path), status.st_mtime)


def _nbytes(path: str) -> int:
    files = [os.path.join(folder, file) for folder, _, files in os.walk(path) for file in files]
    return sum(status.st_size for file in files or [path] if (status := layout.stat_or_none(file)) is not None)
