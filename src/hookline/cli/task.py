"""One task of `hookline launch`: its process, and further processes after failures."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from hookline import clock
from hookline.cli.guardian import Guardian
from hookline.cli.output import Echo
from hookline.distributed.processes import ProcessGroup
from hookline.monitored import RecoveryPolicy

ASKED = (signal.SIGTERM, signal.SIGINT)
"""The signals for an orderly end of a task."""


class Task:
    """A task, from its first start to its last end; `process` is its latest process.

    Args:
        name: Its name in messages.
        start: Starts a process for it.
        restarts: The number of restarts after failures, and the waits before them; None for no restart.
        say: Called with messages about its failures.
    """

    def __init__(
        self, name: str, start: Callable[[], ProcessGroup], restarts: RecoveryPolicy | None, say: Callable[[str], None]
    ) -> None:
        self._name, self._start, self._say = name, start, say
        self._restarts = None if restarts is None else (restarts, restarts.generator())
        self._failures = 0
        self._due: float | None = None
        self._status: int | None = None
        self.process = start()

    def status(self) -> int | None:
        """Returns the exit status once the task has ended for good; None while it runs or will be started again."""
        if self._due is not None and clock.monotonic() >= self._due:
            self._due, self.process = None, self._start()
        if self._due is None and self._status is None:
            status = self.process.status()
            if status is not None:
                self._note_end(status)
        return None if self._due is not None else self._status

    def start_no_more(self) -> None:
        """Disables restarts; the task stays running or ended."""
        self._restarts = None
        if self._due is not None:
            self._due, self._status = None, self.process.status()

    def _note_end(self, status: int) -> None:
        if self._restarts is not None and is_failure(status):
            policy, generator = self._restarts
            if self._failures < policy.max_attempts:
                self._failures += 1
                wait_secs = policy.backoff_secs(self._failures, generator)
                self._due = clock.monotonic() + wait_secs
                again = f"It is started again in {wait_secs:.1f} s ({self._failures} of {policy.max_attempts} times)."
                self._say(f"{self._name} {ended(status)}. {again}")
                return
        self._status = status
        if status:
            self._say(f"{self._name} {ended(status)}.")


def is_failure(status: int) -> bool:
    """Returns whether an exit status is a failure: neither 0 nor that of a requested end."""
    return status != 0 and not any(status in (-number, 128 + number) for number in ASKED)


def as_of_shell(status: int) -> int:
    """Returns an exit status as a shell does: 128 plus the signal where that ended the process."""
    return status if status >= 0 else 128 - status


def ended(status: int) -> str:
    """Returns the predicate of a sentence about a task with a nonzero exit status."""
    for number in ASKED:
        if status == 128 + number:
            return f"left the training on {number.name}"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"failed with exit status {status}"


def started(
    name: str, command: Sequence[str], environment: Mapping[str, str], guardian: Guardian, echo: Echo
) -> ProcessGroup:
    """Starts a process that ends with this one, and shows its output."""
    pipes = {"stdin": guardian.pipe, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = ProcessGroup(guardian.announced(command), environment, on_end=guardian.forget, **pipes)
    echo.follow(name, process.stdout, sys.stdout)
    echo.follow(name, process.stderr, sys.stderr)
    return process
