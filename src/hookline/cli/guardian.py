"""The guardian of `hookline launch`: if the launcher is killed, it ends the launcher's processes.

`Guardian` is the launcher's side. The other side is a process that is run by its path, so that it imports nothing of
hookline. It has a session of its own, which Ctrl-C does not reach. Its standard input is a pipe on which tasks announce
their process groups (`+number`) and the launcher withdraws those that have ended (`-number`). Only the launcher keeps
the pipe open, so the pipe ends with the launcher, however it ends. A launcher that ends in order first kills the
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

# A task announces itself and holds the pipe until then, because the launcher may be killed right after starting it.
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
        cleanup_command: A command to run once they have ended; empty for none.

    Attributes:
        pipe: The standard input for announced commands, which they replace with an empty one.
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
        """Returns a command that announces its process group, which it must lead, and then becomes `command`."""
        return [sys.executable, "-I", "-S", "-c", _ANNOUNCE, *command]

    def withdraw(self, group: int) -> None:
        """Spares a process group; call it before its number is returned to the system."""
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
            # A group that has ended is forgotten soon, because the system may reuse its number.
            groups = _signal(groups, 0)
            if not groups:
                return
            select.select((), (), (), _POLL_SECS)


def _signal(groups: set[int], number: int) -> set[int]:
    """Sends a signal, and returns the groups that still exist."""
    there = set()
    for group in groups:
        # macOS does not permit this for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            there.add(group)
    return there


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2:])
