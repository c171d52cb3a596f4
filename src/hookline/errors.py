"""The exceptions that hookline raises for failures during training.

Misuse of the library raises the ordinary `ValueError`, `TypeError`, `KeyError` and `RuntimeError`. Failures of the
world, the engine or the user's own function at run time are in this tree::

    Exception
    ├── OpError                        base; one subclass a status code
    │   ├── CancelledError              1  the run was cancelled
    │   ├── UnknownError                2  no better status is known
    │   ├── InvalidArgumentError        3  a value can never be right
    │   ├── DeadlineExceededError       4  a limit of time ran out
    │   ├── NotFoundError               5  a file, checkpoint or name is absent
    │   ├── AlreadyExistsError          6  the thing to create already exists
    │   ├── PermissionDeniedError       7  the caller may not do this
    │   ├── ResourceExhaustedError      8  out of memory, disk, quota
    │   ├── FailedPreconditionError     9  the system is not in the state needed (an uninitialised variable)
    │   ├── AbortedError               10  the session is lost: recover           (preemption)
    │   ├── OutOfRangeError            11  the input has ended                    (end of input)
    │   ├── UnimplementedError         12  not supported here
    │   ├── InternalError              13  an invariant of the engine broke
    │   ├── UnavailableError           14  a peer is away: recover                (preemption)
    │   ├── DataLossError              15  data cannot be read back
    │   └── UnauthenticatedError       16  the caller is not known
    └── RuntimeError                   of Python
        └── NanLossDuringTrainingError     the loss is not a number

If a process was asked to end and does so in order, this is neither an error nor an `Exception`::

    SystemExit                         of Python
    └── Preempted                          SIGTERM or Ctrl-C came, and the training was left with its work saved
    KeyboardInterrupt                  of Python
    └── Interrupted                        likewise in a notebook, where the process goes on

References:
    `tf.errors` and `tf.estimator.NanLossDuringTrainingError`. Difference: an engine error becomes one of these classes
    through `from_exception` and stays reachable as `__cause__`.
"""

from __future__ import annotations

import errno
import re
import signal
from typing import Any, ClassVar, Self

from hookline.log import escape_text

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "Interrupted",
    "InvalidArgumentError",
    "NanLossDuringTrainingError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Preempted",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]


class OpError(Exception):
    """Base of all errors that carry a status code.

    Args:
        node_def: Description of the failing node, or None if no single node is to blame.
        op: The failing operation, or None.
        message: The text of the exception: the failing part, the failure and the remedy.

    Example:
        >>> raise NotFoundError.from_message("No checkpoint in '/runs/a'.")
        Traceback (most recent call last):
        ...
        hookline.errors.NotFoundError: No checkpoint in '/runs/a'.

    References:
        `tf.errors.OpError`. Difference: the code belongs to the class and is not an argument.
    """

    error_code: ClassVar[int] = 2

    def __init__(self, node_def: Any, op: Any, message: str | None) -> None:
        super().__init__(node_def, op, message)
        self.node_def = node_def
        self.op = op
        self.message = escape_text(message or "")  # Names in it may come from anywhere.

    @classmethod
    def from_message(cls, message: str) -> Self:
        """Returns an error for which no single node is to blame."""
        return cls(None, None, message)

    def __str__(self) -> str:
        return self.message


class CancelledError(OpError):
    """The run was cancelled before it finished."""

    error_code = 1


class UnknownError(OpError):
    """An error for which no better status is known."""

    error_code = 2


class InvalidArgumentError(OpError):
    """A value can never be right, in any state of the system."""

    error_code = 3


class DeadlineExceededError(OpError):
    """A limit of time ran out before the work was done."""

    error_code = 4


class NotFoundError(OpError):
    """A requested file, checkpoint or name does not exist."""

    error_code = 5


class AlreadyExistsError(OpError):
    """The file or object to create already exists."""

    error_code = 6


class PermissionDeniedError(OpError):
    """The caller lacks the permission."""

    error_code = 7


class ResourceExhaustedError(OpError):
    """Memory, disk space or another quota has run out."""

    error_code = 8


class FailedPreconditionError(OpError):
    """The system is not in the state this needs, such as a variable that was never initialised."""

    error_code = 9


class AbortedError(OpError):
    """The session was lost; a recoverable session creates a new one and tries again."""

    error_code = 10


class OutOfRangeError(OpError):
    """The input has ended, so training ends in order."""

    error_code = 11


class UnimplementedError(OpError):
    """The engine does not support the request."""

    error_code = 12


class InternalError(OpError):
    """An invariant of the engine was broken."""

    error_code = 13


class UnavailableError(OpError):
    """A peer cannot be reached now; a recoverable session creates a new session and tries again."""

    error_code = 14


class DataLossError(OpError):
    """Stored data is damaged and cannot be read back."""

    error_code = 15


class UnauthenticatedError(OpError):
    """The caller has no valid credentials."""

    error_code = 16


class NanLossDuringTrainingError(RuntimeError):
    """The loss (or another watched tensor) holds a NaN.

    Example:
        >>> issubclass(NanLossDuringTrainingError, OpError)
        False

    References:
        `tf.estimator.NanLossDuringTrainingError`. Difference: it has a message, which names the step.
    """


class Preempted(SystemExit):
    """A signal asked this process to end, and a monitored session was closed in order.

    If it is not caught, it ends the process with the exit status that a shell shows for the signal: 143 for SIGTERM,
    130 for SIGINT. It is not one of `PREEMPTION_ERRORS`, so no session recovers from it.

    Args:
        number: The signal.

    Attributes:
        signal: The signal.
        code: The exit status.

    Example:
        >>> error = Preempted(signal.SIGTERM)
        >>> error.code, str(error)
        (143, 'SIGTERM has asked this process to end.')

    References:
        None in `tf.train`, where a signal ends the process and hooks are not told.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)
        self.code = 128 + number

    def __str__(self) -> str:
        return f"{self.signal.name} has asked this process to end."


class Interrupted(KeyboardInterrupt):
    """A notebook's cell was interrupted, and a monitored session was left in order.

    It stands where a script gets `Preempted`, which would ask a notebook to end. A notebook shows its message alone.

    Example:
        >>> error = Interrupted()
        >>> error.add_note("run() goes on from step 57.")
        >>> print(*error._render_traceback_())
        Interrupted: The training was left in order. run() goes on from step 57.

    References:
        None in `tf.train`, where an interrupt ends a run in its middle.
    """

    def __str__(self) -> str:
        return "The training was left in order."

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows in place of a traceback."""
        return [" ".join([f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())])]


GRACEFUL_EXITS = (Preempted, Interrupted)
"""What a session is left with on a signal."""

PREEMPTION_ERRORS = (AbortedError, UnavailableError)
"""The errors from which a recoverable session recovers."""

END_OF_INPUT = (OutOfRangeError, StopIteration)
"""The errors that end training cleanly."""

# "DEADLINE_EXCEEDED" for DeadlineExceededError, and so on.
_CLASS_OF_STATUS = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).upper(): kind
    for kind in OpError.__subclasses__()
}

_CLASS_OF_ERRNO: dict[int | None, type[OpError]] = {
    errno.ENOSPC: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
    errno.ENOMEM: ResourceExhaustedError,
    errno.EMFILE: ResourceExhaustedError,
    errno.ENFILE: ResourceExhaustedError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.EEXIST: AlreadyExistsError,
    errno.ENOTDIR: FailedPreconditionError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOENT: NotFoundError,
}


def from_os_error(error: OSError, message: str) -> OpError:
    """Returns the hookline error for an error of the operating system.

    Args:
        error: The operating system's error.
        message: The failed action, with its subject and without a full stop; the system's message follows.

    Returns:
        A new `OpError` of the class for the error's number, or `UnknownError` if there is none; raise it `from` the
        error.

    Example:
        >>> str(from_os_error(PermissionError(errno.EACCES, "Permission denied"), "Saver could not write '/runs'"))
        "Saver could not write '/runs': Permission denied."
    """
    kind = _CLASS_OF_ERRNO.get(error.errno, UnknownError)
    return kind.from_message(f"{message}: {error.strerror or error}.")


def from_exception(exc: BaseException) -> BaseException:
    """Returns the hookline error for an error of the engine; any other exception comes back unchanged.

    The engine (`jax.errors.JaxRuntimeError`) starts its text with the name of a status, such as `UNAVAILABLE: ...`. An
    engine error with an unknown status becomes `UnknownError`.

    Args:
        exc: Any exception, of the engine or not.

    Returns:
        A new `OpError` with the engine's text and `exc` as its `__cause__`, or `exc` itself.

    Example:
        >>> from jax.errors import JaxRuntimeError
        >>> from_exception(JaxRuntimeError("UNAVAILABLE: peer 3 is away"))
        UnavailableError(None, None, 'UNAVAILABLE: peer 3 is away')
        >>> error = KeyError("w")
        >>> from_exception(error) is error
        True
    """
    # By name: importing JAX to check an exception would load it in programs that do not use it.
    if not any(
        kind.__name__ in ("JaxRuntimeError", "XlaRuntimeError")
        and kind.__module__.partition(".")[0] in ("jax", "jaxlib")
        for kind in type(exc).__mro__
    ):
        return exc
    message = str(exc)
    status, _, _ = message.partition(":")
    mapped = _CLASS_OF_STATUS.get(status.strip(), UnknownError)(None, None, message)
    mapped.__cause__ = exc
    return mapped
