"""The exceptions that hookline raises for failures during training.

Misuse of the library raises Python's `ValueError`, `TypeError`, `KeyError` and `RuntimeError`. Failures at run time, of
files, other processes, the JAX runtime or the user's function, are in this tree::

    Exception
    ├── OpError                        base; one subclass a status code
    │   ├── CancelledError              1  the run was cancelled
    │   ├── UnknownError                2  no better status is known
    │   ├── InvalidArgumentError        3  a value can never be right
    │   ├── DeadlineExceededError       4  a time limit was exceeded
    │   ├── NotFoundError               5  a file, checkpoint or name does not exist
    │   ├── AlreadyExistsError          6  the thing to create already exists
    │   ├── PermissionDeniedError       7  the caller lacks the permission
    │   ├── ResourceExhaustedError      8  out of memory, disk, quota
    │   ├── FailedPreconditionError     9  a requirement is not met (a variable is uninitialised)
    │   ├── AbortedError               10  the session is lost: recover              (preemption)
    │   ├── OutOfRangeError            11  the input has ended, which ends the training
    │   ├── UnimplementedError         12  not supported here
    │   ├── InternalError              13  an invariant of the JAX runtime broke
    │   ├── UnavailableError           14  a peer cannot be reached: recover         (preemption)
    │   ├── DataLossError              15  stored data is damaged
    │   └── UnauthenticatedError       16  the caller has no valid credentials
    └── RuntimeError                   of Python
        └── NanLossDuringTrainingError     the loss is NaN

A process that ends gracefully after a signal raises a `BaseException` that is no `Exception`::

    SystemExit                         of Python
    └── Preempted                          SIGTERM or Ctrl-C came; the training was saved and closed
    KeyboardInterrupt                  of Python
    └── Interrupted                        the same in a notebook, where the process continues

References:
    `tf.errors` and `tf.estimator.NanLossDuringTrainingError`. Difference: `from_exception` maps an error of the JAX
    runtime to one of these classes, and keeps it as `__cause__`.
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
    """The base of all errors with a status code.

    Args:
        node_def: A description of the failing node, or None if no single node failed.
        op: The failing operation, or None.
        message: The message: the failing part, the failure and the remedy.

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
        """Returns an error without a node and an operation."""
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
    """A time limit was exceeded before the work was done."""

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
    """A requirement is not met; for example, a variable is not initialised."""

    error_code = 9


class AbortedError(OpError):
    """The session was lost; a monitored session creates a new one and retries."""

    error_code = 10


class OutOfRangeError(OpError):
    """The input has ended, which ends the training without an error."""

    error_code = 11


class UnimplementedError(OpError):
    """The JAX runtime does not support the request."""

    error_code = 12


class InternalError(OpError):
    """An invariant of the JAX runtime was broken."""

    error_code = 13


class UnavailableError(OpError):
    """A peer cannot be reached now; a monitored session creates a new session and retries."""

    error_code = 14


class DataLossError(OpError):
    """Stored data is damaged."""

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
    """A signal asked this process to end, and a monitored session was closed gracefully.

    If it is not caught, the process ends with the exit status of the signal in a shell: 143 for SIGTERM, 130 for
    SIGINT. No session recovers from it.

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
        None in `tf.train`, where a signal ends the process without a call of a hook.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)
        self.code = 128 + number

    def __str__(self) -> str:
        return f"{self.signal.name} has asked this process to end."


class Interrupted(KeyboardInterrupt):
    """A notebook's cell was interrupted, and a monitored session was closed gracefully.

    A script gets `Preempted` instead, which would ask a notebook to end. A notebook shows the message without a
    traceback.

    Example:
        >>> error = Interrupted()
        >>> error.add_note("run() goes on from step 57.")
        >>> print(*error._render_traceback_())
        Interrupted: The training was left in order. run() goes on from step 57.

    References:
        None in `tf.train`, where an interrupt ends a run before it is complete.
    """

    def __str__(self) -> str:
        return "The training was left in order."

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython shows in place of a traceback."""
        return [" ".join([f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())])]


GRACEFUL_EXITS = (Preempted, Interrupted)
"""The exceptions that leave a session after a signal."""

PREEMPTION_ERRORS = (AbortedError, UnavailableError)
"""The errors from which a recoverable session recovers."""

END_OF_INPUT = (OutOfRangeError, StopIteration)
"""The errors that end a training as a success."""

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
    """Maps an error of the operating system to a hookline error.

    Args:
        error: The operating system's error.
        message: The failed action, with its subject and without a full stop; the system's message is appended.

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
    """Maps an error of the JAX runtime to a hookline error; returns any other exception unchanged.

    The message of a `jax.errors.JaxRuntimeError` begins with the name of a status, such as `UNAVAILABLE: ...`. One with
    an unknown status becomes `UnknownError`.

    Args:
        exc: Any exception.

    Returns:
        A new `OpError` with the same message and `exc` as its `__cause__`, or `exc` itself.

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
