"""Checkpoints as directories: complete or invisible, replaced by renames, removed without leaving partial ones.

A checkpoint is written beside its final place, into a directory that no other attempt uses, and renamed to `<path>`
when it has its manifest. If a checkpoint is there already, the new one is first renamed to `<path>.hookline-saving`,
where readers find it while the old one is moved away (`locate`).

Each step is on the disk before the next one begins: all files and directories before the manifest, the manifest before
the rename, the rename before anything older is removed, a removed checkpoint's new name before its files are deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from typing import NamedTuple

from hookline import arguments, errors, log
from hookline.checkpoint import durable, failures
from hookline.checkpoint.durable import WRITING_SUFFIX, being_written
from hookline.checkpoint.manifest import FILE_NAME, MOST_BYTES, Manifest, NewerFormat
from hookline.regular_file import NotReadable, read_text

SAVING_SUFFIX = ".hookline-saving"
REPLACED_SUFFIX = ".hookline-replaced"
REMOVED_SUFFIX = ".hookline-removed"
BROKEN_SUFFIX = ".hookline-broken"
# The contents of a checkpoint beside its manifest.
_OF_ORBAX = frozenset({"_CHECKPOINT_METADATA", "state"})
_LEFTOVER = re.compile(r"(.+)\.hookline-(saving|replaced|removed|writing|broken)(-\w+)?")
_NO_CHECKPOINT = re.compile(r".*\.hookline-((replaced|removed)(-\w+)?|writing-\w+|broken(-\d+)?)")
_RANDOM = re.compile(r".*-[0-9a-f]{8}")


class Leftover(NamedTuple):
    """A file or directory of a checkpoint under another name: while it is saved or removed, or since that was cut off.

    Its kind is "writing", "saving", "replaced", "removed", or "broken" if the checkpoint was moved aside.
    """

    path: str
    of: str
    kind: str


_logger = log.of(__name__)
# Leftovers of failed attempts that could not be removed.
_left: set[str] = set()


def base_of(path: str) -> str:
    """Returns the path of a checkpoint without the number of its step."""
    return re.sub(r"-\d+$", "", path)


def locate(path: str) -> str | None:
    """Returns the directory that holds the complete checkpoint `path` now; None if there is none."""
    for directory in (path, path + SAVING_SUFFIX, path):  # Once more: it may have been renamed in the meantime.
        status = _status(os.path.join(directory, FILE_NAME))
        if status is not None and stat.S_ISREG(status.st_mode):
            return directory
    return None


def flaw(path: str) -> str:
    """Describes the flaw of an incomplete checkpoint; empty if the checkpoint is complete or missing."""
    # Once more: it may have been renamed in the meantime.
    if not _is_there(path) or locate(path) is not None or not _is_there(path):
        return ""
    if not os.path.isdir(path):
        return "it is a file, not a directory"
    if not (left := _entries(path)):
        return "it is empty"
    return f"its {FILE_NAME} is no regular file" if FILE_NAME in left else f"it has no {FILE_NAME}"


def require_whole(path: str) -> None:
    """Raises `DataLossError` if there is an incomplete checkpoint at a path at which one was saved."""
    if found := flaw(path):
        raise errors.DataLossError(
            None, None, f"Checkpoint '{path}' is broken and cannot be read: {found}. {previous_advice(path)}"
        )


def has_the_look(path: str) -> bool:
    """Returns whether an incomplete checkpoint seems to be hookline's, by its remaining contents."""
    if base_of(path) == path or not os.path.isdir(path):
        return False
    left = _entries(path)
    return not left or not _OF_ORBAX.isdisjoint(left)


def names(directory: str) -> list[str]:
    """Returns the names of all complete checkpoints in a directory, sorted; none if there is no such directory."""
    found = {entry.removesuffix(SAVING_SUFFIX) for entry in folders(directory)}
    return sorted(
        name
        for name in found
        if not _NO_CHECKPOINT.fullmatch(name) and locate(os.path.join(directory, name)) is not None
    )


def folders(directory: str) -> list[str]:
    """Returns the names of the folders in a directory; none if there is no such directory.

    It asks the system for nothing but the directory's list, however many other files there are.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failures.not_read(error, directory, "") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # Of a link in a circle.
        if failures.may_pass(error):
            raise
        return False


def read_manifest(path: str) -> tuple[str, Manifest]:
    """Returns the directory that a checkpoint is in now, and its manifest.

    Raises:
        NotFoundError: There is nothing at `path`.
        InvalidArgumentError: hookline did not write the directory or file there.
        FailedPreconditionError: A later version of hookline wrote it.
        DataLossError: The manifest is broken; or it is missing, and checkpoints of other steps are beside it.
    """
    path = arguments.path("Restoring", "the checkpoint", path)
    failures.refuse_url("Restoring", path)
    directory = locate(path)
    if directory is None:
        if _is_one_of_several(path):
            require_whole(path)
        raise _absent(path)
    try:
        return directory, Manifest.from_json(read_text(os.path.join(directory, FILE_NAME), MOST_BYTES))
    except NewerFormat as error:
        raise errors.FailedPreconditionError(None, None, f"Checkpoint '{path}' cannot be read: {error}.") from error
    except NotReadable as error:
        why = ValueError(f"its {FILE_NAME} is damaged: {error}")
        raise failures.not_read(why, path, previous_advice(path)) from why
    except (OSError, ValueError) as error:
        raise failures.not_read(error, path, previous_advice(path)) from error


def _is_one_of_several(path: str) -> bool:
    """Returns whether there are complete checkpoints of the same name, with other step numbers, beside a path."""
    name = os.path.basename(path)
    base, others = base_of(name), names(os.path.dirname(path) or ".")
    return base != name and any(base_of(other) == base != other for other in others)


def _absent(path: str) -> errors.OpError:
    parent = os.path.dirname(path) or "."
    there = f"Checkpoints in '{parent}': {', '.join(names(parent)) or 'none'}."
    if os.path.isdir(path):
        inside = names(path)
        if inside:
            return errors.InvalidArgumentError(
                None,
                None,
                f"'{path}' is a directory of checkpoints ({', '.join(inside)}), not a checkpoint: use one of them, or "
                f"latest_checkpoint('{path}').",
            )
        if os.path.exists(os.path.join(path, "_CHECKPOINT_METADATA")):
            return errors.InvalidArgumentError(
                None,
                None,
                f"'{path}' was not written by hookline: it has no {FILE_NAME}. It is an Orbax checkpoint of another "
                f"program: read it with Orbax itself. {there}",
            )
        empty = "is empty" if not _entries(path) else f"is no checkpoint of hookline (it has no {FILE_NAME})"
        return errors.NotFoundError(None, None, f"'{path}' {empty}, and no checkpoint has been saved in it.")
    if os.path.exists(path):
        return errors.InvalidArgumentError(None, None, f"'{path}' is a file; a checkpoint is a directory. {there}")
    if not os.path.isdir(parent):
        there = f"Its directory '{parent}' does not exist either."
    return errors.NotFoundError(
        None, None, f"There is no checkpoint '{path}', and no directory of checkpoints by that name. {there}"
    )


def previous_advice(path: str) -> str:
    """Returns a sentence that names the checkpoints that could be restored instead of a broken one."""
    parent = os.path.dirname(path) or "."
    others = [os.path.join(parent, name) for name in names(parent) if name != os.path.basename(path)]
    if not others:
        return "There is no other checkpoint in its directory."
    return f"Restore another one, such as the newest of: {', '.join(others)}."


def prepare(path: str, was_saved: Callable[[], bool] = lambda: False) -> str:
    """Returns a directory to write a checkpoint to, which does not exist yet.

    The remains of an earlier checkpoint are moved away from the final place. `was_saved` returns whether there was a
    checkpoint; otherwise the remains must look like one.

    Raises:
        AlreadyExistsError: A file or directory at `path` is not a checkpoint and will not be overwritten.
    """
    durable.make_directories(os.path.dirname(path))
    _finish(path)
    if _is_there(path) and locate(path) is None:
        if not (was_saved() or has_the_look(path)):
            raise errors.AlreadyExistsError(
                None,
                None,
                f"Saver will not overwrite '{path}', which is no checkpoint of hookline: move it away or save "
                "elsewhere.",
            )
        text = "The remains of checkpoint '%s' are in the way of a new one (%s), and were moved to '%s'."
        _logger.warning(text, path, flaw(path), move_aside(path))
    for left in [left for left in _left if os.path.dirname(left) == os.path.dirname(path)]:
        _discard_if_possible(left)
    writing = f"{path}{WRITING_SUFFIX}{secrets.token_hex(4)}"
    being_written.add(writing)
    return writing


def commit(
    writing: str,
    manifest: Manifest,
    changing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Completes the checkpoint in the directory of `prepare`, and moves it into place.

    `changing` is entered for the renames, when all files are on the disk; an error ends the attempt.
    """
    path = writing.rpartition(WRITING_SUFFIX)[0]
    saving, replaced = path + SAVING_SUFFIX, f"{path}{REPLACED_SUFFIX}-{secrets.token_hex(4)}"
    if len(text := manifest.to_json()) > MOST_BYTES:
        raise errors.InvalidArgumentError(
            None,
            None,
            f"Checkpoint '{path}' cannot be saved: its {FILE_NAME} would have {len(text):,} bytes, more than "
            f"{MOST_BYTES:,}. Save large texts (a position in the data, a hook's state) as arrays.",
        )
    durable.sync_tree(writing)
    durable.write(os.path.join(writing, FILE_NAME), text)
    durable.sync_directory(os.path.dirname(path))
    with changing():
        if _is_there(path):
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
    """Renames a broken checkpoint, so that it is not taken for a good one, and returns its new name."""
    return _rename_aside(locate(path) or path, path)


def _rename_aside(directory: str, path: str) -> str:
    aside, number = path + BROKEN_SUFFIX, 1
    while os.path.lexists(aside):
        number += 1
        aside = f"{path}{BROKEN_SUFFIX}-{number}"
    durable.rename(directory, aside)
    return aside


def remove(path: str) -> None:
    """Removes a checkpoint, which disappears at once, before its files; after an error another call continues."""
    with contextlib.suppress(FileNotFoundError):
        durable.rename(path, f"{path}{REMOVED_SUFFIX}-{secrets.token_hex(4)}")
    for left in leftovers(os.path.dirname(path)):
        if left.of == path and left.kind == "removed" and _is_own(left):
            _discard(left.path)


def may_remove(path: str) -> str:
    """Returns why the checkpoint at a path must stay, as a clause; empty if hookline wrote it and may remove it.

    What a link leads to may lie anywhere, and be anybody's.
    """
    if os.path.islink(path):
        return "it is a link"
    if not _is_there(path):
        return ""
    try:
        read_manifest(path)
    except errors.OpError as error:
        return f"it is not known to be a checkpoint that hookline wrote: {error}"
    return ""


def _is_own(leftover: Leftover) -> bool:
    """Returns whether hookline made a leftover: by its random name, or, if it has none, by what is in it.

    A link is one whose checkpoint was a link; it alone goes, and not what it leads to.
    """
    if _RANDOM.fullmatch(leftover.path) or os.path.islink(leftover.path):
        return True
    return os.path.isdir(leftover.path) and {FILE_NAME, *_OF_ORBAX}.issuperset(_entries(leftover.path))


def leftovers(directory: str) -> list[Leftover]:
    """Returns those in a directory, sorted by their paths."""
    found = [(entry, match) for entry in sorted(_entries(directory)) if (match := _LEFTOVER.fullmatch(entry))]
    return [Leftover(os.path.join(directory, entry), os.path.join(directory, m[1]), m[2]) for entry, m in found]


def removable_leftovers(path: str) -> list[Leftover]:
    """Returns the leftovers of killed processes: of checkpoints named like `path`, and of small files beside them."""
    return [
        left
        for left in leftovers(os.path.dirname(path))
        if (base_of(left.of) == base_of(path) or (left.kind == "writing" and os.path.isfile(left.path)))
        and left.kind != "broken"
        and left.path not in being_written
        and locate(left.of) != left.path
        and _is_own(left)
    ]


def clean(path: str) -> None:
    """Removes the leftovers of killed processes, of checkpoints named like `path` with any step number.

    A complete checkpoint that still awaits its rename is moved into place.
    """
    for left in removable_leftovers(path):
        _discard(left.path)
    for left in leftovers(os.path.dirname(path)):
        if left.kind == "saving" and base_of(left.of) == base_of(path) and locate(left.of) == left.path:
            _finish(left.of)


def _finish(path: str) -> None:
    saving = path + SAVING_SUFFIX
    if saving in being_written or not _is_there(saving):
        return
    if locate(path) != saving:
        if _is_own(Leftover(saving, path, "saving")):
            _discard(saving)
        else:
            text = "'%s' is in the way of a new checkpoint, was not made by hookline, and was moved to '%s'."
            _logger.warning(text, saving, _rename_aside(saving, path))
        return
    if _is_there(path):
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
    if not _is_there(path):
        return
    if failed is not None and failures.may_pass(failed):
        raise failed
    _logger.warning("A left-over of an earlier checkpoint could not be removed: %s", path)


def _discard_if_possible(path: str) -> None:
    """Removes a file or directory, or leaves that to the next save."""
    try:
        _left.add(path)
        _discard(path)
        _left.discard(path)
    except (OSError, errors.OpError) as error:
        _logger.warning("'%s' could not be removed, and stays until the next save: %s", path, error)


def _entries(directory: str) -> list[str]:
    """Returns the names in a directory; none if there is no such directory."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failures.not_read(error, directory, "") from error


def _is_there(path: str) -> bool:
    return _status(path, follow_symlinks=False) is not None


def _status(path: str, *, follow_symlinks: bool = True) -> os.stat_result | None:
    try:
        return durable.status(path, follow_symlinks=follow_symlinks)
    except OSError as error:
        raise failures.not_read(error, path, "") from error
