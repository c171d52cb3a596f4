"""Heartbeats of processes whose threads run, through a pipe to their launcher: `Pulse` sends, `Heartbeats` receives.

Each line is a JSON value: the path of the account of the run (empty without one) is a beat, null ends the heartbeats.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
from collections.abc import Callable, Iterator, MutableMapping

from hookline import clock

_BEATS_PER_STALL, _LONGEST_BEAT_SECS, _DELAY_SECS = 10, 1.0, 0.5
_STALL_SECS, _PIPE = "HOOKLINE_STALL_SECS", "HOOKLINE_HEARTBEAT_PIPE"
_STDERR = 2


def _beat_secs(stall_secs: float) -> float:
    return min(stall_secs / _BEATS_PER_STALL, _LONGEST_BEAT_SECS)


def environment(stall_secs: float, pipe: int) -> dict[str, str]:
    """Returns the environment variables that pass a launcher's limit and its pipe to a process."""
    return {_STALL_SECS: repr(stall_secs), _PIPE: str(pipe)}


def pop_environment(environ: MutableMapping[str, str]) -> tuple[float, int] | None:
    """Returns what `environment` has passed, if anything, and removes it, so that children do not get it."""
    secs, pipe = environ.pop(_STALL_SECS, None), environ.pop(_PIPE, None)
    if secs is None or pipe is None:
        return None
    os.set_inheritable(int(pipe), False)
    os.set_blocking(int(pipe), False)
    return float(secs), int(pipe)


class Pulse:
    """Shows that threads of this process run, from a thread; and ends the process if they do not.

    While C code holds Python's lock no thread runs, so `faulthandler` prints the stacks and exits with status 1, from a
    thread without that lock: its timer is started again at each beat. It is one per process.

    Args:
        stall_secs: The time without a beat that ends the process.
        pipe: The launcher's pipe; None without a launcher.
        account: Returns the path of the account of the run; empty without one.
    """

    def __init__(self, stall_secs: float, pipe: int | None, account: Callable[[], str]) -> None:
        self._stall_secs, self._pipe, self._account = stall_secs, pipe, account
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def beat(self) -> None:
        """Sends a heartbeat."""
        self._send(self._account())

    def stop(self) -> None:
        """Ends the heartbeats."""
        self._stop.set()

    def join(self, timeout_secs: float) -> None:
        """Waits until the thread has ended."""
        self._thread.join(timeout_secs)

    def _run(self) -> None:
        every = _beat_secs(self._stall_secs)
        while True:
            faulthandler.dump_traceback_later(self._stall_secs + every, exit=True, file=_STDERR)
            self.beat()
            if clock.REAL.wait(self._stop, every):
                faulthandler.cancel_dump_traceback_later()
                self._send(None)
                return

    def _send(self, value: str | None) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # The launcher is gone, or stopped.
                os.write(self._pipe, f"{json.dumps(value)}\n".encode())


class Heartbeats:
    r"""Receives the heartbeats of processes, in their launcher.

    Args:
        stall_secs: The time without a beat after which a process counts as stalled.

    Attributes:
        accounts: The path of the account of each process that has one.

    Example:
        >>> heartbeats = Heartbeats(stall_secs=60)
        >>> with heartbeats.pipe(0) as pipe:
        ...     _ = os.write(pipe, b'"run/account-0.jsonl"\n')
        >>> heartbeats.receive()
        >>> heartbeats.silent(), heartbeats.accounts
        ([], {0: 'run/account-0.jsonl'})
        >>> heartbeats.close()
    """

    def __init__(self, stall_secs: float) -> None:
        # A process that can ends itself with its stacks: that comes first.
        self._limit_secs = stall_secs + 2 * _beat_secs(stall_secs) + _DELAY_SECS
        self._stall_secs = stall_secs
        self._pipes: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}
        self._beat_at: dict[int, float] = {}
        self.accounts: dict[int, str] = {}

    @contextlib.contextmanager
    def pipe(self, process: int) -> Iterator[int]:
        """Yields the pipe to pass to a process."""
        self._pipes[process], theirs = os.pipe()
        os.set_blocking(self._pipes[process], False)
        try:
            yield theirs
        finally:
            os.close(theirs)

    def receive(self) -> None:
        """Reads what has come."""
        for process, pipe in self._pipes.items():
            with contextlib.suppress(BlockingIOError):
                while received := os.read(pipe, 65536):
                    *lines, self._rest[process] = (self._rest.get(process, b"") + received).split(b"\n")
                    for line in lines:
                        self._note(process, json.loads(line))

    def silent(self) -> list[int]:
        """Returns the processes whose heartbeats have ceased for so long that their launcher must end them."""
        return [process for process in self._beat_at if self._age(process) >= self._limit_secs]

    def has_stalled(self, process: int) -> bool:
        """Returns whether the heartbeats of a process that has ended had ceased long before."""
        return process in self._beat_at and self._age(process) >= self._stall_secs

    def _age(self, process: int) -> float:
        return clock.REAL.monotonic() - self._beat_at[process]

    def _note(self, process: int, value: str | None) -> None:
        if value is None:
            self._beat_at.pop(process, None)
            return
        self._beat_at[process] = clock.REAL.monotonic()
        if value:
            self.accounts[process] = value

    def close(self) -> None:
        """Closes the pipes."""
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes.clear()
