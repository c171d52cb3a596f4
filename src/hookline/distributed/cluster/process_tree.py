"""ProcessTree: a process that is ended together with all its children, without affecting any other process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookline import clock

_POLL_SECS = 0.05


class ProcessTree:
    """A process and its children, in an operating system session of their own: Ctrl-C in the terminal skips them.

    Args:
        env: The whole environment.
        on_end: Called with the ID of the process group after it was killed, before the system may reuse the ID.
        pipes: The `stdin`, `stdout` and `stderr` of `subprocess.Popen`; pipes are attributes of the same names.

    Raises:
        OSError: The program cannot be started.

    Example:
        >>> import sys
        >>> group = ProcessTree([sys.executable, "-c", "raise SystemExit(3)"])
        >>> group.wait(timeout_secs=60)
        3
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        on_end: Callable[[int], None] | None = None,
        **pipes: Any,
    ) -> None:
        self._process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._on_end = on_end
        self._ended = False

    @property
    def pid(self) -> int:
        """The ID of the process and of its process group."""
        return self._process.pid

    def status(self) -> int | None:
        """Returns the exit status (minus the signal's number, if a signal ended it), or `None` while the process runs.

        If the process has ended, its children are killed before the system may reuse its ID, because the ID could then
        name another process group.
        """
        if not self._ended and _has_exited(self._process):
            self.kill()
        return self._process.returncode

    def wait(self, timeout_secs: float) -> int | None:
        """Waits until the process ends or the time is over, and returns `status()`."""
        deadline = clock.monotonic() + timeout_secs
        while (status := self.status()) is None and clock.monotonic() < deadline:
            clock.sleep(_POLL_SECS)
        return status

    def block(self) -> None:
        """Waits until the process has exited, without reaping it; other threads may call `status` meanwhile."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # Its status was read already.
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            while self.status() is None:
                clock.sleep(_POLL_SECS)

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process, if it still runs; not to its children, which it may need to end in order."""
        if self.status() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process and its children. A second call does nothing."""
        if self._ended:
            return
        # macOS does not permit this for a group with only a zombie left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._on_end is not None:
            self._on_end(self.pid)
        self._process.wait()
        self._ended = True
        if self.stdin is not None:
            self.stdin.close()


def stop_all(
    groups: Iterable[ProcessTree], grace_secs: float = 0, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """Sends SIGTERM to all groups, waits for their end, and kills the rest.

    Args:
        groups: The groups to end.
        grace_secs: The time that all groups together may take; 0 to kill them at once.
        is_enough: Called during that time; once it returns True, the rest is killed at once.
    """
    groups = list(groups)
    if grace_secs > 0:
        for group in groups:
            group.ask_to_end()
        deadline = clock.monotonic() + grace_secs
        while None in [group.status() for group in groups] and clock.monotonic() < deadline and not is_enough():
            clock.sleep(_POLL_SECS)
    for group in groups:
        group.kill()


def _has_exited(process: subprocess.Popen[Any]) -> bool:
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    # WNOWAIT leaves the process waitable, so the system does not reuse its ID.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
