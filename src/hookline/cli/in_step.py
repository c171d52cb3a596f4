"""`hookline launch --in-step`: a script as several processes that run in step, on one machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from hookline import clock
from hookline.cli.guardian import Guardian
from hookline.cli.output import Echo
from hookline.cli.signals import Signals
from hookline.cli.task import ASKED, ended, started
from hookline.distributed.in_step import environment
from hookline.distributed.processes import ProcessGroup, stop_all

_RUN = (sys.executable, str(Path(__file__).with_name("in_step_script.py")))

_LOOK_EVERY_SECS = 0.02
_ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
_LEFT = tuple(128 + number for number in ASKED)

# Gloo prints it in C++, so it may come in the middle of a line.
_OF_GLOO = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]*? : \d+")


@dataclasses.dataclass(frozen=True)
class InStepLaunch:
    """The job to start.

    Attributes:
        command: The script and its arguments.
        processes: How many processes run it.
        grace_secs: How long processes may take to end when they are asked to.
        check_every_launch: Whether they compare each program before they launch it.
    """

    command: tuple[str, ...]
    processes: int
    grace_secs: float = 30.0
    check_every_launch: bool = False


def launch_in_step(what: InStepLaunch) -> int:
    """Runs a script in several processes in step, shows what they print, and waits for their end.

    The processes find each other on the loopback interface. If one fails, the others are asked to end, and killed after
    the grace period, because they may wait for the one that is missing. SIGINT and SIGTERM ask every process to end,
    which saves and takes at most the grace period; a second signal ends everything at once. If this process is killed,
    a guardian process ends all, within the grace period or 5 seconds.

    Returns:
        The exit status of the process that failed first, else 0; 128 plus the signal if a signal ended it or the job.
    """
    with Signals() as signals, Guardian(what.grace_secs) as guardian, _held_port() as port:
        return _Job(what, port, signals, guardian).run()


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """Yields a port on which process 0 can listen, and which the system gives to nobody else in the meantime."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class _Job:
    """The processes of a job."""

    def __init__(self, what: InStepLaunch, port: int, signals: Signals, guardian: Guardian) -> None:
        self._what, self._signals, self._guardian = what, signals, guardian
        self._address = f"127.0.0.1:{port}"
        self._echo = Echo(width=len(str(what.processes - 1)), without=_OF_GLOO)
        self._groups: list[ProcessGroup] = []
        self._ended: list[int] = []

    def run(self) -> int:
        """Starts all processes, waits, and leaves none; returns the exit status."""
        try:
            for index in range(self._what.processes):
                self._start(index)
            first = self._await_failure()
            if self._signals.caught:
                return self._stop_on_signal()
            return 0 if first is None else self._end_after(first)
        finally:
            stop_all(self._groups)
            self._echo.finish()

    def _start(self, index: int) -> None:
        command = [*_RUN, *self._what.command]
        own = environment(self._address, self._what.processes, index, check_every_launch=self._what.check_every_launch)
        variables = {**os.environ, **own, "PYTHONUNBUFFERED": "1"}
        group = started(str(index), command, variables, self._guardian, self._echo)
        self._groups.append(group)

        def note_end() -> None:
            group.block()
            self._ended.append(index)

        threading.Thread(target=note_end, name=f"hookline-process-{index}", daemon=True).start()

    def _await_failure(self) -> int | None:
        """Waits until one has ended badly, and returns which; None if all have ended well, or a signal came."""
        while not self._signals.caught:
            statuses = [group.status() for group in self._groups]
            if failed := [index for index, status in enumerate(statuses) if status]:
                # JAX aborts those that are left, and some end by themselves because of the first.
                order = [*self._ended, *failed]
                return min(failed, key=lambda index: (statuses[index] in _ABORTED, order.index(index)))
            if None not in statuses:
                break
            clock.wait(self._signals.event, _LOOK_EVERY_SECS)
        return None

    def _end_after(self, first: int) -> int:
        status = self._groups[first].status() or 0
        others = [group for group in self._groups if group.status() is None]
        if status in _LEFT:
            # All leave together; a second request would end those that still save.
            _say(f"process {first} {ended(status)}.")
            self._await_others()
        elif others:
            _say(f"process {first} {ended(status)}. The others are ended, within {self._what.grace_secs:g} s.")
            stop_all(others, self._what.grace_secs, lambda: bool(self._signals.caught))
        else:
            _say(f"process {first} {ended(status)}.")
        return status if status >= 0 else 128 - status

    def _await_others(self) -> None:
        deadline = clock.monotonic() + self._what.grace_secs
        while not self._signals.caught and None in [group.status() for group in self._groups]:
            if clock.monotonic() >= deadline:
                break
            clock.wait(self._signals.event, _LOOK_EVERY_SECS)

    def _stop_on_signal(self) -> int:
        name = signal.Signals(self._signals.caught[0]).name
        _say(f"stopping on {name}, within {self._what.grace_secs:g} s; once more to stop at once.")
        stop_all(self._groups, self._what.grace_secs, lambda: self._signals.again)
        for index, group in enumerate(self._groups):
            status = group.status()
            if status not in (0, *_LEFT, *(-number for number in ASKED)):
                _say(f"process {index} {ended(status or 0)}.")
        return self._signals.exit_status


def _say(text: str) -> None:
    print(f"hookline launch: {text}", file=sys.stderr, flush=True)
