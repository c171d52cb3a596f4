"""Renames of checkpoints: to the final path, aside, and before a removal, so that no partial checkpoint is visible.

A checkpoint is written to a new directory beside its final path, and renamed to `<path>` after its manifest is written.
If there is a checkpoint already, the new one is first renamed to `<path>.hookline-saving`, where readers find it while
the old one is moved away (`layout.locate`).

Each step is on the disk before the next one begins: all files and directories before the manifest, the manifest before
the rename, the rename before anything older is removed, a removed checkpoint's new name before its files are deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable

from hookline import errors, log
from hookline.checkpoint.directory.layout import (
    ORBAX_NAMES,
    SAVING_SUFFIX,
    Leftover,
    base_path,
    defect,
    entries,
    leftovers,
    locate,
    looks_like_checkpoint,
    path_exists,
    read_manifest,
)
from hookline.checkpoint.directory.manifest import FILE_NAME, MAX_BYTES, Manifest
from hookline.checkpoint.saving import durable, failures
from hookline.checkpoint.saving.durable import WRITING_SUFFIX, being_written

_REPLACED_SUFFIX, _REMOVED_SUFFIX, _BROKEN_SUFFIX = ".hookline-replaced", ".hookline-removed", ".hookline-broken"
_RANDOM = re.compile(r".*-[0-9a-f]{8}")

_logger = log.get_logger(__name__)
# Leftovers of failed attempts that could not be removed.
_undeleted: set[str] = set()


def prepare(path: str, was_saved: Callable[[], bool] = lambda: False) -> str:
    """Returns the path of a directory to create and to write a checkpoint to. Its parent exists, since it has a lease.

    Moves the remains of an earlier checkpoint away from `path`. `was_saved` returns whether a checkpoint was saved
    there; otherwise the remains must look like one.

    Raises:
        AlreadyExistsError: A file or directory at `path` is not a checkpoint and will not be overwritten.
    """
    _finish_rename(path)
    if path_exists(path) and locate(path) is None:
        if not (was_saved() or looks_like_checkpoint(path)):
            raise errors.AlreadyExistsError.from_message(
                f"Saver will not overwrite '{path}', which is no checkpoint of hookline: move it away or save "
                "elsewhere.",
            )
        text = "The remains of checkpoint '%s' are in the way of a new one (%s), and were moved to '%s'."
        _logger.warning(text, path, defect(path), move_aside(path))
    for left in [left for left in _undeleted if os.path.dirname(left) == os.path.dirname(path)]:
        _discard_if_possible(left)
    writing = f"{path}{WRITING_SUFFIX}{secrets.token_hex(4)}"
    being_written.add(writing)
    return writing


def commit(
    writing: str,
    manifest: Manifest,
    ensure_held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Completes the checkpoint in the directory of `prepare`, and renames it to its final path.

    Once all files are on the disk, the renames are made inside `ensure_held`, whose error ends the attempt.
    """
    path = writing.rpartition(WRITING_SUFFIX)[0]
    saving, replaced = path + SAVING_SUFFIX, f"{path}{_REPLACED_SUFFIX}-{secrets.token_hex(4)}"
    if len(text := manifest.to_json()) > MAX_BYTES:
        raise errors.InvalidArgumentError.from_message(
            f"Checkpoint '{path}' cannot be saved: its {FILE_NAME} would have {len(text):,} bytes, more than "
            f"{MAX_BYTES:,}. Save large texts (a position in the data, a hook's state) as arrays.",
        )
    durable.sync_tree(writing)
    durable.write_text(os.path.join(writing, FILE_NAME), text)
    durable.sync_directory(os.path.dirname(path))
    with ensure_held():
        if path_exists(path):
            being_written.update((saving, replaced))
            try:
                durable.rename(writing, saving)
                durable.rename(path, replaced)
                durable.rename(saving, path)
            finally:
                being_written.difference_update((saving, replaced))
            _discard_if_possible(replaced)
        else:
            durable.rename(writing, path)
    being_written.discard(writing)


def abandon(writing: str) -> None:
    """Removes the leftovers of a failed attempt in the directory of `prepare`."""
    _discard_if_possible(writing)
    being_written.discard(writing)


def move_aside(path: str) -> str:
    """Renames a broken checkpoint, so that it is not mistaken for a complete one, and returns its new name."""
    return _rename_aside(locate(path) or path, path)


def _rename_aside(directory: str, path: str) -> str:
    aside, number = path + _BROKEN_SUFFIX, 1
    while os.path.lexists(aside):
        number += 1
        aside = f"{path}{_BROKEN_SUFFIX}-{number}"
    durable.rename(directory, aside)
    return aside


def remove(path: str) -> None:
    """Removes a checkpoint: first its name, at once, then its files; after an error another call continues."""
    with contextlib.suppress(FileNotFoundError):
        durable.rename(path, f"{path}{_REMOVED_SUFFIX}-{secrets.token_hex(4)}")
    for left in leftovers(os.path.dirname(path)):
        if left.checkpoint == path and left.kind == "removed" and _is_own(left):
            _discard(left.path)


def removal_obstacle(path: str, *, is_own: bool = False) -> str:
    """Returns the reason why a checkpoint must not be removed, as a clause; empty if hookline wrote it.

    The target of a link may be anywhere and belong to anybody. With `is_own` this process has written the checkpoint.
    """
    if os.path.islink(path):
        return "it is a link"
    if is_own or not path_exists(path):
        return ""
    try:
        read_manifest(path)
    except errors.OpError as error:
        return f"it is not known to be a checkpoint that hookline wrote: {error}"
    return ""


def _is_own(leftover: Leftover) -> bool:
    """Returns whether hookline made a leftover: by its random name, or, if it has none, by its contents.

    A link was made of a checkpoint that was a link; only the link is removed, not its target.
    """
    if _RANDOM.fullmatch(leftover.path) or os.path.islink(leftover.path):
        return True
    return os.path.isdir(leftover.path) and {FILE_NAME, *ORBAX_NAMES}.issuperset(entries(leftover.path))


def removable_leftovers(path: str) -> list[Leftover]:
    """Returns the leftovers of killed processes: of checkpoints of the same name as `path`, and of small files."""
    return [
        left
        for left in leftovers(os.path.dirname(path))
        if (base_path(left.checkpoint) == base_path(path) or (left.kind == "writing" and os.path.isfile(left.path)))
        and left.kind != "broken"
        and left.path not in being_written
        and locate(left.checkpoint) != left.path
        and _is_own(left)
    ]


def clean(path: str) -> None:
    """Removes the leftovers of killed processes, of checkpoints of the same name as `path` with any step number.

    A complete checkpoint that was not renamed yet gets its final name.
    """
    for left in removable_leftovers(path):
        _discard(left.path)
    for left in leftovers(os.path.dirname(path)):
        if (
            left.kind == "saving"
            and base_path(left.checkpoint) == base_path(path)
            and locate(left.checkpoint) == left.path
        ):
            _finish_rename(left.checkpoint)


def _finish_rename(path: str) -> None:
    saving = path + SAVING_SUFFIX
    if saving in being_written or not path_exists(saving):
        return
    if locate(path) != saving:
        if _is_own(Leftover(saving, path, "saving")):
            _discard(saving)
        else:
            text = "'%s' is in the way of a new checkpoint, was not made by hookline, and was moved to '%s'."
            _logger.warning(text, saving, _rename_aside(saving, path))
        return
    if path_exists(path):
        text = "The remains at '%s' are in the way of the complete checkpoint, and were moved to '%s'."
        _logger.warning(text, path, _rename_aside(path, path))
    durable.rename(saving, path)


def _discard(path: str) -> None:
    """Removes a file or directory, if it exists; raises temporary errors, and warns of others."""
    failed: OSError | None = None
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        failed = error
        shutil.rmtree(path, ignore_errors=True)  # As much as can be removed.
    if not path_exists(path):
        return
    if failed is not None and failures.is_transient(failed):
        raise failed
    _logger.warning("A leftover of an earlier checkpoint could not be removed: %s", path)


def _discard_if_possible(path: str) -> None:
    """Removes a file or directory, or leaves that to the next save."""
    try:
        _undeleted.add(path)
        _discard(path)
        _undeleted.discard(path)
    except (OSError, errors.OpError) as error:
        _logger.warning("'%s' could not be removed, and stays until the next save: %s", path, error)
