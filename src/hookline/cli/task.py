"""Runs the tasks of a launcher: their processes and restarts, their output, and signals to stop."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, TextIO

from hookline import clock
from hookline.cli import output
from hookline.cli.guardian import Guardian
from hookline.cli.main import MAX_RESTARTS
from hookline.distributed.cluster.process_tree import ProcessTree, stop_all
from hookline.hooks.control.watchdog import STALLED
from hookline.monitored import RecoveryPolicy
from hookline.signals import preemption

_FINISH_SECS = 5.0

_POLL_SECS = 0.05
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals on which a task ends gracefully."""


class OutputEcho:
    r"""Prints the output of several processes at once, line by line, with the name of the process.

    A line that a process overwrites (with a carriage return, as progress bars do) is printed as a separate line. Empty
    lines are left out.

    Args:
        width: The space for names.
        removed_pattern: A pattern to remove from lines.

    Example:
        >>> import io
        >>> echo, shown = OutputEcho(width=8), io.StringIO()
        >>> echo.follow("chief", io.BytesIO(b"step 1\rstep 2\n"), shown)
        >>> echo.finish()
        >>> print(shown.getvalue(), end="")
        chief    | step 1
        chief    | step 2
    """

    def __init__(self, width: int, removed_pattern: re.Pattern[bytes] | None = None) -> None:
        self._width, self._removed_pattern = width, removed_pattern
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, name: str, source: IO[bytes] | None, to: TextIO) -> None:
        """Prints the lines of `source` in a thread until it ends, and closes it."""
        assert source is not None
        thread = threading.Thread(target=self._copy, args=(f"{name:{self._width}} | ", source, to), daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        """Waits until everything is printed."""
        for thread in self._threads:
            thread.join(_FINISH_SECS)

    def _copy(self, prefix: str, source: IO[bytes], to: TextIO) -> None:
        rest = b""
        with source:
            while chunk := source.read1(65536):  # type: ignore[attr-defined]
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                self._show(prefix, lines, to)
            self._show(prefix, [rest], to)

    def _show(self, prefix: str, lines: list[bytes], to: TextIO) -> None:
        if self._removed_pattern is not None:
            lines = [self._removed_pattern.sub(b"", line) for line in lines]
        texts = [line.decode(errors="replace").rstrip() for line in lines]
        with self._lock:
            to.write("".join(f"{prefix}{text}\n" for text in texts if text))
            to.flush()


class SignalCatcher:
    """Catches SIGINT, SIGTERM, and SIGHUP of a closed terminal, inside the `with` block.

    The handler takes no lock: it may interrupt the main thread while that thread holds the lock, or interrupt itself.
    So it sets no event, and waits poll `caught`.

    Attributes:
        caught: The signals so far.
        has_repeated: Whether another signal came, too late for a duplicate delivery of the first.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.has_repeated = False
        self.caught: list[int] = []
        self._first_at: float | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ended gracefully on the first signal."""
        return 128 + self.caught[0]

    def has_caught(self) -> bool:
        """Returns whether a signal was caught."""
        return bool(self.caught)

    def wait(self, timeout_secs: float) -> bool:
        """Waits until a signal is caught or the time is over, and returns whether one was caught."""
        deadline = clock.monotonic() + timeout_secs
        while not self.caught and (left := deadline - clock.monotonic()) > 0:
            clock.sleep(min(left, _POLL_SECS))
        return self.has_caught()

    def stop(
        self, groups: Sequence[ProcessTree], grace_secs: float, is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Ends processes after the first signal, within the grace period.

        A second signal, or `is_enough`, ends them at once.
        """
        name = signal.Signals(self.caught[0]).name
        log_message(f"stopping on {name}, within {grace_secs:g} s; once more to stop at once.")
        stop_all(groups, grace_secs, lambda: self.has_repeated or is_enough())

    def __enter__(self) -> SignalCatcher:
        # Ignored signals stay ignored: this is how `nohup` and shells protect a background process.
        caught = [number for number in self._NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._catch) for number in caught}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        now = clock.monotonic()
        if self._first_at is None:
            self._first_at = now
        self.has_repeated = self.has_repeated or now - self._first_at > preemption.REPEAT_WINDOW_SECS[number]
        self.caught.append(number)


class Task:
    """A task, whose process is restarted after failures; `process` is its latest process.

    Args:
        name: Its name in messages.
        start: Starts a process for it.
        restarts: The number of restarts after failures, and the waits before them; None for no restart.
        log: Logs a message about a failure.
    """

    def __init__(
        self, name: str, start: Callable[[], ProcessTree], restarts: RecoveryPolicy | None, log: Callable[[str], None]
    ) -> None:
        self._name, self._start, self._log = name, start, log
        self._restarts = None if restarts is None else (restarts, restarts.generator())
        self._failures = 0
        self._restart_at: float | None = None
        self._status: int | None = None
        self.process = start()

    def status(self) -> int | None:
        """Returns the exit status after the last end of the task; None while it runs or will be restarted."""
        if self._restart_at is not None and clock.monotonic() >= self._restart_at:
            self._restart_at, self.process = None, self._start()
        if self._restart_at is None and self._status is None:
            status = self.process.status()
            if status is not None:
                self._note_end(status)
        return None if self._restart_at is not None else self._status

    def disable_restarts(self) -> None:
        """Disables restarts; the task stays running or ended."""
        self._restarts = None
        if self._restart_at is not None:
            self._restart_at, self._status = None, self.process.status()

    def _note_end(self, status: int) -> None:
        if self._restarts is not None and is_failure(status):
            policy, generator = self._restarts
            if self._failures < policy.max_attempts:
                self._failures += 1
                wait_secs = policy.backoff_secs(self._failures, generator)
                self._restart_at = clock.monotonic() + wait_secs
                again = f"It is restarted in {wait_secs:.1f} s ({self._failures} of {policy.max_attempts} times)."
                self._log(f"{self._name} {describe_exit(status)}. {again}")
                return
        self._status = status
        if status:
            self._log(f"{self._name} {describe_exit(status)}.")


def is_failure(status: int) -> bool:
    """Returns whether an exit status is a failure: neither 0 nor the status after SIGTERM or SIGINT."""
    return status != 0 and not any(status in (-number, 128 + number) for number in STOP_SIGNALS)


def shell_status(status: int) -> int:
    """Returns an exit status as a shell reports it: 128 plus the signal if that ended the process."""
    return status if status >= 0 else 128 - status


def describe_exit(status: int) -> str:
    """Describes a nonzero exit status, as the predicate of a sentence about the task."""
    for number in STOP_SIGNALS:
        if status == 128 + number:
            return f"left the training on {number.name}"
    if status == STALLED:
        return f"was ended by a stall (exit status {status})"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"failed with exit status {status}"


def start_process(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    guardian: Guardian,
    echo: OutputEcho,
    pass_fds: Sequence[int] = (),
) -> ProcessTree:
    """Starts a process that the guardian ends with this one, and prints its output."""
    pipes = {"stdin": guardian.pipe, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": pass_fds}
    process = ProcessTree(guardian.wrap_command(command), environment, on_end=guardian.withdraw, **pipes)
    echo.follow(name, process.stdout, sys.stdout)
    echo.follow(name, process.stderr, sys.stderr)
    return process


def restart_policy(arguments: argparse.Namespace) -> RecoveryPolicy | None:
    """Returns the restarts that the options request; None for none."""
    if arguments.restart == "none":
        return None
    return RecoveryPolicy(arguments.max_restarts or MAX_RESTARTS, initial_backoff_secs=1.0)


def log_message(text: str) -> None:
    """Prints a message of the launcher to the standard error."""
    output.print_error(f"hookline launch: {text}")
