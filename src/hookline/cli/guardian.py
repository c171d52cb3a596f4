"""The guardian of `hookline launch`: a process that ends the launcher's processes if the launcher is killed.

`Guardian` is the part in the launcher. The guardian process runs this file by its path, so it imports nothing of
hookline. It has a process session of its own, so Ctrl-C does not reach it. Its standard input is a pipe: tasks register
their process groups (`+number`), and the launcher withdraws those that have ended (`-number`). Only the launcher keeps
the pipe open, so the pipe closes when the launcher ends in any way. A launcher that ends normally first kills the
guardian.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

_LONGEST_GRACE_SECS = 5.0
_CLEANUP_SECS = 60.0
_POLL_SECS = 0.05

# A task registers itself, and keeps the pipe open until then: the launcher may be killed right after starting it.
_ANNOUNCE = """
import os, sys
try:
    os.write(0, b"+%d\\n" % os.getpid())
except BrokenPipeError:
    pass
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Guardian:
    """Ends process groups if this process is killed inside the `with` block.

    If the guardian itself is killed, everything continues without it.

    Args:
        grace_secs: The time for groups to end after SIGTERM, at most 5 seconds; then they are killed.
        cleanup_command: A command to run after they have ended; empty for none.

    Attributes:
        pipe: The standard input for wrapped commands, which replace it with an empty one.
    """

    def __init__(self, grace_secs: float, cleanup_command: Sequence[str] = ()) -> None:
        # -P: modules of hookline in the script's folder must not hide others of the same name.
        command = [sys.executable, "-P", __file__, str(min(grace_secs, _LONGEST_GRACE_SECS)), *cleanup_command]
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdin is not None
        self.pipe = self._process.stdin

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Returns a command that registers its process group, which it must lead, and then executes `command`."""
        return [sys.executable, "-I", "-S", "-c", _ANNOUNCE, *command]

    def withdraw(self, group: int) -> None:
        """Removes a process group from the guardian; to be called before the system can reuse its number."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.write(b"-%d\n" % group)

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._process:
            self._process.kill()


def _main(grace_secs: float, afterwards: list[str]) -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        groups = groups | {number} if number > 0 else groups - {-number}
    _end(groups, grace_secs)
    if afterwards:
        subprocess.run(afterwards, stdin=subprocess.DEVNULL, timeout=_CLEANUP_SECS, check=False)


def _end(groups: set[int], grace_secs: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        groups = _signal(groups, number)
        for _ in range(round(grace_secs / _POLL_SECS)):
            # Groups that have ended are removed at each poll, because the system may reuse their numbers.
            groups = _signal(groups, 0)
            if not groups:
                return
            select.select((), (), (), _POLL_SECS)


def _signal(groups: set[int], number: int) -> set[int]:
    """Sends a signal, and returns the groups that still exist."""
    there = set()
    for group in groups:
        # On macOS this raises PermissionError for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            there.add(group)
    return there


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2:])
