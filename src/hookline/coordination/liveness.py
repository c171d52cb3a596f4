"""Liveness checks: the status of SPMD processes, also of one whose main thread hangs."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

from hookline import clock
from hookline.coordination.process_group import ProcessGroup
from hookline.errors import UnauthenticatedError

_WAIT_SECS, _ACK_SECS, _LEAVE_SECS, _MAX_ATTEMPTS = 3600.0, 2.0, 2.0, 20
_CALL, _BROADCAST, _END = "call ", "broadcast ", "end "


class LivenessMonitor:
    """Collects the status of all processes, and sends the diagnosed problem to all of them.

    A thread in each process answers, because the main thread may hang in a collective that another process does not
    join. Checks run in numbered rounds, like those of `agreement` but independent of them. Keys are set only once. In
    round n, the first process to set `n/call` starts a check, sends a broadcast, or ends the checks. In a check each
    thread sets `n/answer/<process>`, and process 0 reads all answers and sets `n/problem`. A thread that has read a
    problem sets `ack/<process>`.

    Args:
        group: The processes.
        on_end: Callback, called in the thread with `exited_process` when the checks have ended; not called if the
            key-value store is lost.

    Attributes:
        answer: Callback that gets the question of a check and returns this process's status, as JSON.
        diagnose: Callback that gets all answers, in process 0, and returns the problem, or None.
        problem: The problem that process 0 has found; None as long as there is none.
        on_broadcast: Callback that gets a broadcast message.
        exited_process: The process that has ended its script, which ends the checks.
        error: The error after an unauthenticated entry was found in the key-value store, which ends the checks.
    """

    def __init__(self, group: ProcessGroup, on_end: Callable[[int | None], None] = lambda gone: None) -> None:
        self._group, self._number, self.on_end = group, 0, on_end
        self.answer: Callable[[str], Any] = lambda question: []
        self.diagnose: Callable[[list[Any]], str | None] = lambda answers: None
        self.on_broadcast: Callable[[Any], None] = lambda message: None
        self.exited_process: int | None = None
        self.error: UnauthenticatedError | None = None
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._work, name="hookline-liveness", daemon=True)
        self._thread.start()
        _open.add(self)

    def request_status(self, question: str) -> None:
        """Starts a check of all processes, without waiting; if another process has started one first, does nothing."""
        self._set(f"{self._number}/call", f"{_CALL}{question}")

    def broadcast(self, message: Any) -> None:
        """Sends a JSON message to all processes; their threads call `on_broadcast`, even if the main thread hangs."""
        until, text = clock.monotonic() + _LEAVE_SECS, f"{_BROADCAST}{json.dumps(message)}"
        while not self._set(f"{self._number}/call", text):  # A check or another message came first.
            self._thread.join(_LEAVE_SECS / _MAX_ATTEMPTS)
            if not self._thread.is_alive() or clock.monotonic() >= until:
                return

    def unresponsive(self, within_secs: float) -> list[int]:
        """Returns the processes that do not answer within `within_secs`."""
        number, until = self._number, clock.monotonic() + within_secs
        try:
            self._set(f"{number}/call", _CALL)
            keys = [_key(f"{number}/answer/{process}") for process in range(self._group.count)]
            found = [self._group.store.get(key, max(0.0, until - clock.monotonic())) for key in keys]
        except Exception:  # The key-value store, which is in process 0, cannot be reached.
            return [0]
        return [process for process, answer in enumerate(found) if answer is None]

    def wait_until_acknowledged(self) -> None:
        """Waits briefly until all have received the problem: the exit of this process could end them before that."""
        for process in range(self._group.count):
            self._group.store.get(_key(f"ack/{process}"), _ACK_SECS)

    def close(self) -> None:
        """Ends the liveness checks in all processes; gives up after a while if one no longer answers."""
        _open.discard(self)
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(Exception):  # A lost process need not be notified.
                self._set(f"{self._number}/call", f"{_END}{self._group.index}")
            self._thread.join(_LEAVE_SECS / _MAX_ATTEMPTS)
            if not self._thread.is_alive():
                return

    def _work(self) -> None:
        try:
            self._listen()
        except UnauthenticatedError as error:
            self.error = error
        except Exception:  # The key-value store is gone, and its other users raise that error.
            return
        self.on_end(self.exited_process)

    def _listen(self) -> None:
        index, store = self._group.index, self._group.store
        for self._number in itertools.count():
            number = self._number
            called = self._get(f"{number}/call")
            if called.startswith(_END):
                self.exited_process = int(called.removeprefix(_END))
                return
            if called.startswith(_BROADCAST):
                self.on_broadcast(json.loads(called.removeprefix(_BROADCAST)))
                continue
            self._set(f"{number}/answer/{index}", json.dumps(self.answer(called.removeprefix(_CALL))))
            if self._group.is_chief:
                answers = [json.loads(self._get(f"{number}/answer/{each}")) for each in range(self._group.count)]
                self._set(f"{number}/problem", json.dumps(self.diagnose(answers)))
                store.delete(_key(f"{number - 1}/"))  # Who has answered has read the previous round.
            if (problem := json.loads(self._get(f"{number}/problem"))) is not None:
                self.problem = problem
                self._set(f"ack/{index}", "")

    def _get(self, key: str) -> str:
        while (text := self._group.store.get(_key(key), _WAIT_SECS)) is None:
            pass
        return text

    def _set(self, key: str, text: str) -> bool:
        return self._group.store.set(_key(key), text)


def _key(name: str) -> str:
    return f"liveness/{name}"


_open: weakref.WeakSet[LivenessMonitor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads before JAX ends the service they listen to."""
    for monitor in list(_open):
        monitor.close()
