"""The names in a directory of checkpoints: complete and broken checkpoints, and their temporary names.

`moves.py` renames and removes them.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NamedTuple

from hookline import arguments, errors
from hookline.checkpoint.directory.manifest import FILE_NAME, MAX_BYTES, Manifest, UnsupportedFormat
from hookline.checkpoint.saving import failures
from hookline.regular_file import UnreadableFileError, read_text

SAVING_SUFFIX = ".hookline-saving"
ORBAX_NAMES = frozenset({"_CHECKPOINT_METADATA", "state"})
"""The contents of a checkpoint beside its manifest."""
_LEFTOVER = re.compile(r"(.+)\.hookline-(saving|replaced|removed|writing|broken)(-\w+)?")
_NO_CHECKPOINT = re.compile(r".*\.hookline-((replaced|removed)(-\w+)?|writing-\w+|broken(-\d+)?)")


class Leftover(NamedTuple):
    """A file or directory of a checkpoint under a temporary name: while it is saved or removed, or after a crash.

    Its kind is "writing", "saving", "replaced", "removed", or "broken" if the checkpoint was moved aside.
    """

    path: str
    checkpoint: str
    kind: str


def in_file_system(who: str, name: str, path: Any) -> str:
    """Returns a path after checking that it is in a file system; an object store lacks renames and locks.

    Raises:
        TypeError: It is not a path.
        InvalidArgumentError: It is the address of an object store.
    """
    path = arguments.check_path(who, name, path)
    if "://" in path:
        raise errors.InvalidArgumentError.from_message(
            f"{who} requires a directory of a file system, got '{path}': mount it as a directory."
        )
    return path


def base_path(path: str) -> str:
    """Returns the path of a checkpoint without the number of its step."""
    return re.sub(r"-\d+$", "", path)


def locate(path: str) -> str | None:
    """Returns the directory that holds the complete checkpoint `path` now; None if there is none."""
    for directory in (path, path + SAVING_SUFFIX, path):  # `path` again: it may have been renamed in the meantime.
        found = stat_or_none(os.path.join(directory, FILE_NAME))
        if found is not None and stat.S_ISREG(found.st_mode):
            return directory
    return None


def defect(path: str) -> str:
    """Describes the defect of an incomplete checkpoint; empty if the checkpoint is complete or missing."""
    # `path_exists` again: the checkpoint may have been renamed in the meantime.
    if not path_exists(path) or locate(path) is not None or not path_exists(path):
        return ""
    if not os.path.isdir(path):
        return "it is a file, not a directory"
    if not (left := entries(path)):
        return "it is empty"
    return f"its {FILE_NAME} is no regular file" if FILE_NAME in left else f"it has no {FILE_NAME}"


def require_complete(path: str) -> None:
    """Raises `DataLossError` if the checkpoint that was saved at a path is incomplete."""
    if found := defect(path):
        raise errors.DataLossError.from_message(
            f"Checkpoint '{path}' is broken and cannot be read: {found}. {alternatives_advice(path)}"
        )


def looks_like_checkpoint(path: str) -> bool:
    """Returns whether an incomplete checkpoint seems to be hookline's, by its remaining contents."""
    if base_path(path) == path or not os.path.isdir(path):
        return False
    left = entries(path)
    return not left or not ORBAX_NAMES.isdisjoint(left)


def checkpoint_names(directory: str) -> list[str]:
    """Returns the names of all complete checkpoints in a directory, sorted; none if there is no such directory."""
    found = {entry.removesuffix(SAVING_SUFFIX) for entry in subdirectories(directory)}
    return sorted(
        name
        for name in found
        if not _NO_CHECKPOINT.fullmatch(name) and locate(os.path.join(directory, name)) is not None
    )


def subdirectories(directory: str) -> list[str]:
    """Returns the names of the folders in a directory; none if there is no such directory.

    It reads only the directory's list, not the status of each file, because there may be many other files.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failures.read_error(error, directory, "") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # For example a cycle of links.
        if failures.is_transient(error):
            raise
        return False


def read_manifest(path: str) -> tuple[str, Manifest]:
    """Returns the directory that a checkpoint is in now, and its manifest.

    Raises:
        NotFoundError: There is nothing at `path`.
        InvalidArgumentError: hookline did not write the directory or file there.
        FailedPreconditionError: Another version of hookline wrote it, in another format.
        DataLossError: The manifest is broken; or it is missing, and checkpoints of other steps are beside it.
    """
    directory, text = read_manifest_text(path)
    return directory, parse_manifest(path, text)


def read_manifest_text(path: str) -> tuple[str, str]:
    """Returns the directory that a checkpoint is in now, and the text of its manifest; raises as `read_manifest`."""
    directory = locate(path)
    if directory is None:
        if has_siblings(path):
            require_complete(path)
        raise _not_found_error(path)
    try:
        return directory, read_text(os.path.join(directory, FILE_NAME), MAX_BYTES)
    except UnreadableFileError as error:
        why = ValueError(f"its {FILE_NAME} is damaged: {error}")
        raise failures.read_error(why, path, alternatives_advice(path)) from why
    except OSError as error:
        raise failures.read_error(error, path, alternatives_advice(path)) from error


def parse_manifest(path: str, text: str) -> Manifest:
    """Returns the manifest of a checkpoint from its text; raises as `read_manifest`."""
    try:
        return Manifest.from_json(text)
    except UnsupportedFormat as error:
        raise errors.FailedPreconditionError.from_message(f"Checkpoint '{path}' cannot be read: {error}.") from error
    except ValueError as error:
        raise failures.read_error(error, path, alternatives_advice(path)) from error


def has_siblings(path: str) -> bool:
    """Returns whether there are complete checkpoints of the same name, with other step numbers, beside a path."""
    name = os.path.basename(path)
    base, others = base_path(name), checkpoint_names(os.path.dirname(path) or ".")
    return base != name and any(base_path(other) == base != other for other in others)


def _not_found_error(path: str) -> errors.OpError:
    parent = os.path.dirname(path) or "."
    there = f"Checkpoints in '{parent}': {', '.join(checkpoint_names(parent)) or 'none'}."
    if os.path.isdir(path):
        inside = checkpoint_names(path)
        if inside:
            return errors.InvalidArgumentError.from_message(
                f"'{path}' is a directory of checkpoints ({', '.join(inside)}), not a checkpoint: use one of them, or "
                f"latest_checkpoint('{path}').",
            )
        if os.path.exists(os.path.join(path, "_CHECKPOINT_METADATA")):
            return errors.InvalidArgumentError.from_message(
                f"'{path}' was not written by hookline: it has no {FILE_NAME}. It is an Orbax checkpoint of another "
                f"program: train.load and train.WarmStart read its arrays. {there}",
            )
        empty = "is empty" if not entries(path) else f"is no checkpoint of hookline (it has no {FILE_NAME})"
        return errors.NotFoundError.from_message(f"'{path}' {empty}, and no checkpoint has been saved in it.")
    if os.path.exists(path):
        return errors.InvalidArgumentError.from_message(f"'{path}' is a file; a checkpoint is a directory. {there}")
    if not os.path.isdir(parent):
        there = f"Its directory '{parent}' does not exist either."
    return errors.NotFoundError.from_message(
        f"There is no checkpoint '{path}', and no directory of checkpoints by that name. {there}"
    )


def alternatives_advice(path: str) -> str:
    """Returns a sentence that names the checkpoints that could be restored instead of a broken one."""
    parent = os.path.dirname(path) or "."
    others = [os.path.join(parent, name) for name in checkpoint_names(parent) if name != os.path.basename(path)]
    if not others:
        return "There is no other checkpoint in its directory."
    return f"Restore another one, such as the newest of: {', '.join(others)}."


def leftovers(directory: str) -> list[Leftover]:
    """Returns the leftovers in a directory, sorted by path."""
    found = [(entry, match) for entry in sorted(entries(directory)) if (match := _LEFTOVER.fullmatch(entry))]
    return [Leftover(os.path.join(directory, entry), os.path.join(directory, m[1]), m[2]) for entry, m in found]


def entries(directory: str) -> list[str]:
    """Returns the names in a directory; none if there is no such directory."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failures.read_error(error, directory, "") from error


def path_exists(path: str) -> bool:
    """Returns whether there is anything at a path, even a dangling link."""
    return stat_or_none(path, follow_symlinks=False) is not None


def stat_or_none(path: str, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Returns the status of a file, or None if it is missing or not visible; raises temporary errors."""
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        if failures.is_transient(error):
            raise failures.read_error(error, path, "") from error
        return None
