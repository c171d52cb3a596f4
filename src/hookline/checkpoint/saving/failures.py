"""File errors, mapped to exceptions from `hookline.errors` with advice; and the retries of failed saves."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from hookline import arguments, clock, errors, log
from hookline.coordination import process_group

_logger = log.get_logger(__name__)

_IN_THE_WAY = "Something else of that name is in the way: remove it or use another directory."
_ADVICE: dict[type[errors.OpError], str] = {
    errors.PermissionDeniedError: "Give this user the right to it, or use another directory.",
    errors.FailedPreconditionError: _IN_THE_WAY,
    errors.AlreadyExistsError: _IN_THE_WAY,
    errors.ResourceExhaustedError: "Make room, or keep fewer checkpoints with max_to_keep.",
}
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
# Errors that another program, a colleague or the network may have fixed before the next attempt.
_TRANSIENT_ERRNOS = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.ECONNRESET, errno.EDQUOT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINTR,
    errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETUNREACH, errno.ENFILE, errno.ENOSPC, errno.ESTALE,
    errno.ETIMEDOUT,
})  # fmt: skip
# The attribute of an error that records whether another attempt may succeed.
_TRANSIENT_ATTRIBUTE = "_hookline_transient"
_MISUSE = {kind.__name__: kind for kind in (ValueError, TypeError, RuntimeError)}
_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")


def write_error(failure: BaseException, path: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a checkpoint or another file could not be written."""
    message = f"Checkpoint '{path}' could not be written"
    kind = errors.DeadlineExceededError if _timed_out(failure) else errors.UnknownError
    return (
        _from_errno(failure, message)
        or _as_op_error(failure)
        or kind.from_message(f"{message}: {_first_sentence(failure)}")
    )


def is_transient(failure: BaseException) -> bool:
    """Returns whether another attempt may succeed."""
    if _TRANSIENT_ATTRIBUTE in vars(failure):
        return vars(failure)[_TRANSIENT_ATTRIBUTE]
    return (
        _errno(failure) in _TRANSIENT_ERRNOS
        or _timed_out(failure)
        or isinstance(errors.from_exception(failure), errors.UnavailableError)
    )


def may_be_transient(failure: BaseException) -> bool:
    """Returns whether Orbax reports a missing file that another attempt may find.

    Orbax checks whether a file exists, treats every error as a no, and then reports the file as missing.
    """
    number = _errno(failure)
    return number == errno.ENOENT or (number is None and isinstance(failure, FileNotFoundError | ValueError))


def read_error(failure: BaseException, path: str, advice: str) -> BaseException:
    """Returns the error to raise, `from failure`, when a complete checkpoint could not be read.

    The advice is the remedy if its data are broken.
    """
    message = f"Checkpoint '{path}' could not be read"
    found = _from_errno(failure, message)
    if isinstance(found, errors.PermissionDeniedError | errors.ResourceExhaustedError):
        return found
    if is_transient(failure):
        return errors.UnavailableError.from_message(str(found or f"{message}: {_first_sentence(failure)}"))
    if isinstance(failure, MemoryError) or "start new thread" in str(failure):
        return errors.ResourceExhaustedError.from_message(f"{message}: {_first_sentence(failure)}")
    broken = f"Checkpoint '{path}' is broken and cannot be read: {_first_sentence(failure)} {advice}"
    return _as_op_error(failure) or errors.DataLossError.from_message(broken)


def without_tracebacks(failure: BaseException) -> BaseException:
    """Returns another library's error without its tracebacks, whose frames would keep a copy of the model."""
    for each in _chain(failure):
        each.__traceback__ = None
    while isinstance(failure, errors.OpError) and failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


def set_transient(failure: BaseException, transient: bool) -> None:
    """Records in an error whether another attempt may succeed."""
    vars(failure)[_TRANSIENT_ATTRIBUTE] = transient


def serialize_error(failure: BaseException) -> list[Any]:
    """Returns an error for other processes, as JSON values; see `deserialize_error`."""
    return [type(failure).__name__, str(failure), is_transient(failure)]


def deserialize_error(serialised: list[Any], process: int) -> BaseException:
    """Returns the error of another process as an exception: of the same class, if that is known here.

    Its attribute `process_index` is the index of that process.
    """
    name, text, transient = serialised
    if name in _MISUSE:
        found = _MISUSE[name](f"Process {process}: {text}")
    else:
        kind = getattr(errors, name, None)
        if not isinstance(kind, type) or not issubclass(kind, errors.OpError):
            kind, text = errors.AbortedError, f"{name}: {text}"
        found = kind.from_message(f"Process {process}: {text}")
        set_transient(found, transient)
    found.process_index = process  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _as_op_error(failure: BaseException) -> BaseException | None:
    mapped = errors.from_exception(failure)
    return mapped if isinstance(mapped, errors.OpError) else None


def _from_errno(failure: BaseException, message: str) -> errors.OpError | None:
    number = _errno(failure)
    if number is None:
        return None
    found = errors.from_os_error(OSError(number, os.strerror(number)), message)
    advice = "Close some, or allow more (ulimit -n)." if number in _TOO_MANY_FILES else _ADVICE.get(type(found), "")
    return type(found).from_message(f"{found} {advice}".rstrip())


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
    # Orbax waits for announced work, with a time limit.
    return any(isinstance(each, TimeoutError) for each in _chain(failure))


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _first_sentence(failure: BaseException) -> str:
    first = (str(failure).strip() or repr(failure)).splitlines()[0][:300]
    return first if first.endswith(".") else f"{first}."


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """The retries of a save that fails for a temporary reason: a full disk, an unavailable file system.

    Attributes:
        max_attempts: The number of attempts in all; with 1 there is no retry.
        initial_backoff_secs: The wait before the second attempt; it doubles before each later one.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> [RetryPolicy(max_attempts=4).backoff_secs(failures) for failures in (1, 2, 3)]
        [1.0, 2.0, 4.0]
    """

    max_attempts: int = 4
    initial_backoff_secs: float = 1.0

    def __post_init__(self) -> None:
        arguments.check_int("RetryPolicy", "max_attempts", self.max_attempts, at_least=1)
        arguments.check_number("RetryPolicy", "initial_backoff_secs", self.initial_backoff_secs, at_least=0)

    def attempt(self, function: Callable[[], None], path: str) -> None:
        """Calls a function that writes a file, and calls it again while it fails for a temporary reason.

        Raises:
            OpError: The last failure; `path` is the file to be written.
        """
        failures_so_far = 0
        while True:
            try:
                return function()
            except Exception as error:
                failures_so_far += 1
                mapped = write_error(error, path)
                if failures_so_far >= self.max_attempts or not is_transient(error):
                    if mapped is error:
                        raise
                    raise mapped from without_tracebacks(error)
                self.wait(mapped, failures_so_far)

    def wait(self, failure: BaseException, failures_so_far: int) -> None:
        """Logs the failure, and sleeps until the next attempt is due."""
        secs = self.backoff_secs(failures_so_far)
        if process_group.is_primary():
            text = "%s Attempt %d of %d follows in %g s."
            _logger.warning(text, failure, failures_so_far + 1, self.max_attempts, secs)
        clock.sleep(secs)

    def backoff_secs(self, failures: int) -> float:
        """Returns the wait after this many failures in a row, in seconds."""
        return self.initial_backoff_secs * 2.0 ** (failures - 1)
