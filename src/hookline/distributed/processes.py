"""Processes that end together with all their children: nothing is left behind, and nothing else is affected."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

from hookline import clock

_LOOK_EVERY_SECS = 0.05


class ProcessGroup:
    """A process and its children, in a separate session, so that a Ctrl-C in the terminal reaches only their starter.

    Args:
        command: The command to run.
        env: The whole environment.
        on_end: Called with the group's number when all of it was killed, before the number returns to the system.
        pipes: The `stdin`, `stdout` and `stderr` of `subprocess.Popen`.

    Raises:
        OSError: The program cannot be started.

    Example:
        >>> import sys
        >>> group = ProcessGroup([sys.executable, "-c", "raise SystemExit(3)"])
        >>> group.wait(timeout_secs=60)
        3
        >>> group.stop()
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
        self._on_end = on_end
        self._ended = False

    @property
    def pid(self) -> int:
        """The process, and the number of its group."""
        return self._process.pid

    @property
    def stdin(self) -> IO[Any] | None:
        """The pipe to it, if one was requested."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[Any] | None:
        """Its output, if a pipe was requested."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[Any] | None:
        """Its error output, if a pipe was requested."""
        return self._process.stderr

    def status(self) -> int | None:
        """Returns the exit status (minus the signal that ended it), or `None` while it runs.

        Children that an ended process left behind are killed before its number returns to the system, because the
        group's number could mean another one from then on.
        """
        if not self._ended and _has_exited(self._process):
            self._end()
        return self._process.returncode

    def wait(self, timeout_secs: float) -> int | None:
        """Waits for the end, at most this long, and returns `status()`."""
        deadline = clock.monotonic() + timeout_secs
        while (status := self.status()) is None and clock.monotonic() < deadline:
            clock.sleep(_LOOK_EVERY_SECS)
        return status

    def signal(self, number: int) -> None:
        """Sends a signal to the process and its children, if it still runs."""
        if self.status() is None:
            _signal_group(self.pid, number)

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process alone, if it still runs, because it may need its children to end in order."""
        if self.status() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its children at once."""
        if not self._ended:
            self._end()

    def stop(self, grace_secs: float = 0) -> None:
        """Asks the process to end (SIGTERM), and kills what is left of it and its children after `grace_secs`."""
        stop_all([self], grace_secs)

    def _end(self) -> None:
        _signal_group(self.pid, signal.SIGKILL)
        if self._on_end is not None:
            self._on_end(self.pid)
        self._process.wait()
        self._ended = True
        if self._process.stdin is not None:
            self._process.stdin.close()


def stop_all(groups: Iterable[ProcessGroup], grace_secs: float = 0) -> None:
    """Asks all of them to end (SIGTERM), gives them `grace_secs` together, and kills what is left."""
    groups = list(groups)
    if grace_secs > 0:
        for group in groups:
            group.ask_to_end()
        deadline = clock.monotonic() + grace_secs
        for group in groups:
            group.wait(max(deadline - clock.monotonic(), 0))
    for group in groups:
        group.kill()


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        # macOS reports this for a group with only a zombie left.
        pass


def _has_exited(process: subprocess.Popen[Any]) -> bool:
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    # WNOWAIT leaves the process waitable, so its number stays taken.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
