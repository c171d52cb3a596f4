"""What went wrong with a file, said as one of `hookline.errors`."""

from __future__ import annotations

import errno
import os
import re

from hookline import errors

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BY_ERRNO: dict[int, tuple[type[errors.OpError], str]] = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        (errors.PermissionDeniedError, "Give this user the right to it, or use another directory."),
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        (errors.FailedPreconditionError, "A file is in the way of a directory: remove it or use another directory."),
    ),
    **dict.fromkeys(
        _FULL,
        (errors.ResourceExhaustedError, "Make room on that disk, or keep fewer checkpoints with max_to_keep."),
    ),
    **dict.fromkeys(
        (errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        (errors.ResourceExhaustedError, "Memory or open files ran out."),
    ),
}
_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")


def not_written(failure: BaseException, path: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a checkpoint could not be written.

    Args:
        failure: What the file system, Orbax or the engine raised, in this thread or in a background thread.
        path: The checkpoint, or the file, that was to be written.
    """
    known = _known(failure)
    if known is not None:
        kind, advice = known
        return kind(None, None, f"Checkpoint '{path}' could not be written: {_said(failure)} {advice}")
    return _mapped(failure) or errors.UnknownError(
        None, None, f"Checkpoint '{path}' could not be written: {_said(failure)}"
    )


def not_read(failure: BaseException, path: str, advice: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a complete checkpoint could not be read.

    Args:
        failure: What the file system, Orbax or the engine raised.
        path: The checkpoint.
        advice: What to do if its data are broken.
    """
    known = _known(failure)
    if known is not None and known[0] is not errors.FailedPreconditionError:
        return known[0](None, None, f"Checkpoint '{path}' could not be read: {_said(failure)} {known[1]}")
    return _mapped(failure) or errors.DataLossError(
        None, None, f"Checkpoint '{path}' is broken and cannot be read: {_said(failure)} {advice}"
    )


def _mapped(failure: BaseException) -> BaseException | None:
    mapped = errors.from_exception(failure)
    return mapped if isinstance(mapped, errors.OpError) else None


def _known(failure: BaseException) -> tuple[type[errors.OpError], str] | None:
    number = _errno(failure)
    return None if number is None else _BY_ERRNO.get(number)


def _errno(failure: BaseException | None) -> int | None:
    # Orbax wraps; TensorStore raises ValueError with the number of the system's error in its text.
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno is not None:
            return failure.errno
        found = _OS_ERROR_CODE.search(str(failure))
        if found:
            return int(found.group(1))
        failure = failure.__cause__ or failure.__context__
    return None


def _said(failure: BaseException) -> str:
    number = _errno(failure)
    text = str(failure).strip() or repr(failure)
    first = text.splitlines()[0][:300]
    if number is not None and not isinstance(failure, OSError):
        first = f"[Errno {number}] {os.strerror(number)}"
    return first if first.endswith(".") else f"{first}."
