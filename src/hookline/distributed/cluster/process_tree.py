"""Processes that end together with all their children: none is left behind, and no other process is affected."""

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
    """A process and its children, in a separate session, so that a Ctrl-C in the terminal reaches only their starter.

    Args:
        env: The whole environment.
        on_end: Called with the group's number when all of it was killed, before the system may reuse the number.
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
        """The number of the process and of its group."""
        return self._process.pid

    def status(self) -> int | None:
        """Returns the exit status (minus the signal that ended it), or `None` while it runs.

        Children that an ended process left behind are killed before the system may reuse its number, because the
        group's number could then mean another group.
        """
        if not self._ended and _has_exited(self._process):
            self.kill()
        return self._process.returncode

    def wait(self, timeout_secs: float) -> int | None:
        """Waits for the end, at most this long, and returns `status()`."""
        deadline = clock.monotonic() + timeout_secs
        while (status := self.status()) is None and clock.monotonic() < deadline:
            clock.sleep(_POLL_SECS)
        return status

    def block(self) -> None:
        """Waits until the process has exited, for a thread that notes the time; `status` may be called meanwhile."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # Its status was read already.
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            while self.status() is None:
                clock.sleep(_POLL_SECS)

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process alone, if it still runs, because it may need its children to end in order."""
        if self.status() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its children at once, unless they have been ended already."""
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
    """Asks all groups to end (SIGTERM), gives them `grace_secs` together, and kills the rest.

    Args:
        groups: The groups to end.
        grace_secs: The time that they may take.
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
    # WNOWAIT leaves the process waitable, so its number stays taken.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
