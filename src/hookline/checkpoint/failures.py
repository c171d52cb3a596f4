"""Failures of files as exceptions from `hookline.errors`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Any

from hookline import errors

_IN_THE_WAY = "Something else of that name is in the way: remove it or use another directory."
_ADVICE: dict[type[errors.OpError], str] = {
    errors.PermissionDeniedError: "Give this user the right to it, or use another directory.",
    errors.FailedPreconditionError: _IN_THE_WAY,
    errors.AlreadyExistsError: _IN_THE_WAY,
    errors.ResourceExhaustedError: "Make room, or keep fewer checkpoints with max_to_keep.",
}
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
# Errors that another program, a colleague or the network may have fixed when the save is tried again.
_MAY_PASS = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNRESET, errno.EDQUOT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINTR,
    errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETUNREACH, errno.ENFILE, errno.ENOSPC, errno.ESTALE,
    errno.ETIMEDOUT,
})  # fmt: skip
# The attribute with which an error carries whether another attempt may succeed.
_PASSES = "_hookline_may_pass"
_MISUSE = {kind.__name__: kind for kind in (ValueError, TypeError, RuntimeError)}
_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")


def not_written(failure: BaseException, path: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a checkpoint or another file could not be written."""
    message = f"Checkpoint '{path}' could not be written"
    kind = errors.DeadlineExceededError if _timed_out(failure) else errors.UnknownError
    return _of_the_system(failure, message) or _mapped(failure) or kind(None, None, f"{message}: {_said(failure)}")


def refuse_url(who: str, path: str) -> None:
    """Raises `InvalidArgumentError` for the address of an object store, which lacks renames and locks."""
    if "://" in path:
        raise errors.InvalidArgumentError(
            None, None, f"{who} requires a directory of a file system, got '{path}': mount it as a directory."
        )


def may_pass(failure: BaseException) -> bool:
    """Returns whether another attempt may succeed."""
    if _PASSES in vars(failure):
        return vars(failure)[_PASSES]
    return (
        _errno(failure) in _MAY_PASS
        or _timed_out(failure)
        or isinstance(errors.from_exception(failure), errors.UnavailableError)
    )


def is_unclear(failure: BaseException) -> bool:
    """Returns whether Orbax reports a missing file that another attempt may find.

    Orbax checks whether a file exists, takes every error for a no, and then reports the file as missing.
    """
    number = _errno(failure)
    return number == errno.ENOENT or (number is None and isinstance(failure, FileNotFoundError | ValueError))


def not_read(failure: BaseException, path: str, advice: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a complete checkpoint could not be read.

    The advice is the remedy if its data are broken.
    """
    message = f"Checkpoint '{path}' could not be read"
    found = _of_the_system(failure, message)
    if isinstance(found, errors.PermissionDeniedError | errors.ResourceExhaustedError):
        return found
    if may_pass(failure):
        return errors.UnavailableError(None, None, str(found or f"{message}: {_said(failure)}"))
    if isinstance(failure, MemoryError) or "start new thread" in str(failure):
        return errors.ResourceExhaustedError(None, None, f"{message}: {_said(failure)}")
    broken = f"Checkpoint '{path}' is broken and cannot be read: {_said(failure)} {advice}"
    return _mapped(failure) or errors.DataLossError(None, None, broken)


def without_tracebacks(failure: BaseException) -> BaseException:
    """Returns another library's error without its tracebacks, whose frames would keep a copy of the model."""
    for each in _chain(failure):
        each.__traceback__ = None
    while isinstance(failure, errors.OpError) and failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


def decide(failure: BaseException, may_pass: bool) -> None:
    """Records in an error whether another attempt may succeed."""
    vars(failure)[_PASSES] = may_pass


def told(failure: BaseException) -> list[Any]:
    """Returns the description of an error for other processes, as values of JSON; see `retold`."""
    return [type(failure).__name__, str(failure), may_pass(failure)]


def retold(told: list[Any], process: int) -> BaseException:
    """Returns the error of another process as an exception: of the same class, if that is known here.

    Its attribute `of_process` is the index of that process.
    """
    found = _retold(told, f"Process {process}: ")
    found.of_process = process  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _retold(told: list[Any], who: str) -> BaseException:
    name, text, passes = told
    if name in _MISUSE:
        return _MISUSE[name](f"{who}{text}")
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, errors.OpError):
        kind, text = errors.AbortedError, f"{name}: {text}"
    found = kind(None, None, f"{who}{text}")
    decide(found, passes)
    return found


def _mapped(failure: BaseException) -> BaseException | None:
    mapped = errors.from_exception(failure)
    return mapped if isinstance(mapped, errors.OpError) else None


def _of_the_system(failure: BaseException, message: str) -> errors.OpError | None:
    number = _errno(failure)
    if number is None:
        return None
    found = errors.from_os_error(OSError(number, os.strerror(number)), message)
    advice = "Close some, or allow more (ulimit -n)." if number in _TOO_MANY_FILES else _ADVICE.get(type(found), "")
    return type(found)(None, None, f"{found} {advice}".rstrip())


def _errno(failure: BaseException) -> int | None:
    # Orbax wraps errors; TensorStore raises ValueError with the number of the system's error in its text.
    for each in _chain(failure):
        if isinstance(each, OSError) and each.errno is not None:
            return each.errno
        found = _OS_ERROR_CODE.search(str(each))
        if found:
            return int(found.group(1))
    return None


def _timed_out(failure: BaseException) -> bool:
    # Orbax waits for a limited time for what it was told would come.
    return any(isinstance(each, TimeoutError) for each in _chain(failure))


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _said(failure: BaseException) -> str:
    first = (str(failure).strip() or repr(failure)).splitlines()[0][:300]
    return first if first.endswith(".") else f"{first}."
