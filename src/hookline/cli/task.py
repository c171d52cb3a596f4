"""One task of `hookline launch`: its process, and the next process if it is started again after a failure."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hookline import clock
from hookline.distributed.processes import ProcessGroup
from hookline.monitored import RecoveryPolicy

_ASKED = (signal.SIGTERM, signal.SIGINT)


class Task:
    """A task, from its first start to its last end; `process` is the one that was started last.

    Args:
        name: Its name in messages.
        start: Starts a process for it.
        restarts: How often it is started again after a failure, and with what waits; None for never.
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
        """Starts no further process: the task is left running or ended."""
        self._restarts = None
        if self._due is not None:
            self._due, self._status = None, self.process.status()

    def _note_end(self, status: int) -> None:
        if self._restarts is not None and _is_failure(status):
            policy, generator = self._restarts
            if self._failures < policy.max_attempts:
                self._failures += 1
                wait_secs = policy.backoff_secs(self._failures, generator)
                self._due = clock.monotonic() + wait_secs
                again = f"It is started again in {wait_secs:.1f} s ({self._failures} of {policy.max_attempts} times)."
                self._say(f"{self._name} {_ended(status)}. {again}")
                return
        self._status = status
        if status:
            self._say(f"{self._name} {_ended(status)}.")


def _is_failure(status: int) -> bool:
    """Returns whether an exit status means a failure: the task ended badly, and nobody asked it to end."""
    return status != 0 and not any(status in (-number, 128 + number) for number in _ASKED)


def _ended(status: int) -> str:
    for number in _ASKED:
        if status == 128 + number:
            return f"left the training on {number.name}"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"failed with exit status {status}"
