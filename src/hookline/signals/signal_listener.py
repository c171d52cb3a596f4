"""Receives signals in a thread, which can log them and end the process while the main thread is stuck."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from hookline import clock

_JOIN_TIMEOUT_SECS = 2.0
_WRITE_TIMEOUT_SECS = 0.5
_CLOSE = 0


class SignalListener:
    """Receives each signal in a thread, by `signal.set_wakeup_fd`, even while the main thread is busy.

    Most sessions receive no signal. So before the first signal no code waits for the thread, neither for its start nor
    for its end: on a busy machine each such wait takes a millisecond or more. The first signal starts a second thread,
    which reacts to signals, and which `close` joins.

        opened          a first thread waits for a byte; it is not made by `threading`, whose `start` would wait for it
        closed          a byte ends the first thread
        or a signal     the thread "hookline-preemption" starts, and reacts to this signal and to all later ones
        closed          a byte ends that thread, and `close` waits for it

    Args:
        deadline: Returns the time until which it waits for the next signal, as a reading of the monotonic clock.
        on_signal: Called in the thread with the number of each signal, and with None after the deadline.
    """

    def __init__(self, deadline: Callable[[], float], on_signal: Callable[[int | None], None]) -> None:
        self._deadline, self._on_signal = deadline, on_signal
        self._read_socket, self._write_socket = socket.socketpair()
        self._write_socket.setblocking(False)
        before = signal.set_wakeup_fd(self._write_socket.fileno(), warn_on_full_buffer=False)
        # An event loop may already have a wakeup fd; then our handler calls `notify`.
        self._has_wakeup_fd = before == -1
        if not self._has_wakeup_fd:
            signal.set_wakeup_fd(before)
        self._start_lock = threading.Lock()
        self._first_handled = threading.Event()
        self._is_notified = self._is_closed = False
        self._thread: threading.Thread | None = None
        _thread.start_new_thread(self._wait_for_first, ())

    def notify(self, number: int) -> None:
        """Notifies the thread of a signal; called by the handler."""
        self._is_notified = True
        if not (self._has_wakeup_fd and self._holds_wakeup_fd()):
            with contextlib.suppress(OSError):
                self._write_socket.send(bytes([number]))

    def _holds_wakeup_fd(self) -> bool:
        """Returns whether the thread still has the wakeup fd; a later event loop may have replaced it."""
        now = signal.set_wakeup_fd(self._write_socket.fileno(), warn_on_full_buffer=False)
        if now in (self._write_socket.fileno(), -1):
            return now != -1
        signal.set_wakeup_fd(now)
        return False

    def close(self) -> None:
        """Ends the thread, after it has reacted to the signals that were handled; it reacts to no later ones."""
        self._restore_wakeup_fd()
        with contextlib.suppress(OSError):
            self._write_socket.send(bytes([_CLOSE]))
        with self._start_lock:
            self._is_closed = True
        if self._is_notified:
            self._first_handled.wait(_JOIN_TIMEOUT_SECS)
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_SECS)
        self._write_socket.close()

    def close_after_fork(self) -> None:
        """Releases its sockets in a forked process, where the thread does not exist."""
        self._restore_wakeup_fd()
        self._read_socket.close()
        self._write_socket.close()

    def _restore_wakeup_fd(self) -> None:
        if self._has_wakeup_fd:
            now = signal.set_wakeup_fd(-1)
            if now != self._write_socket.fileno():
                signal.set_wakeup_fd(now)

    def _wait_for_first(self) -> None:
        """Waits for the first signal, and then starts the thread that reacts to signals."""
        first = self._read_socket.recv(1)
        with self._start_lock:
            is_signal = first not in (b"", bytes([_CLOSE])) and (self._is_notified or not self._is_closed)
            if is_signal:
                args = (first[0],)
                thread = threading.Thread(target=self._listen, args=args, name="hookline-preemption", daemon=True)
                if is_signal := try_start(thread):
                    self._thread = thread
        self._first_handled.set()
        if not is_signal:
            self._read_socket.close()

    def _listen(self, number: int | None) -> None:
        with self._read_socket:
            while number != _CLOSE:
                self._on_signal(number)
                number = self._receive()

    def _receive(self) -> int | None:
        """Returns the next signal, or None after the deadline."""
        left = self._deadline() - clock.REAL.monotonic()
        self._read_socket.settimeout(None if left > threading.TIMEOUT_MAX else max(left, 0.001))
        try:
            received = self._read_socket.recv(1)
            return received[0] if received else _CLOSE
        except TimeoutError:
            return None


def write_with_timeout(write: Callable[[], None]) -> None:
    """Writes in a thread, and waits for it half a second: the main thread may be stuck with the stream's lock."""
    thread = threading.Thread(target=write, name="hookline-tell", daemon=True)
    if try_start(thread):
        thread.join(_WRITE_TIMEOUT_SECS)
    else:
        write()


def try_start(thread: threading.Thread) -> bool:
    """Starts a thread, and returns whether it could: since Python 3.12 none starts while the interpreter ends."""
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
        return False
    return True


def exit_now(status: int) -> NoReturn:
    """Ends the process at once; printed output is flushed."""
    write_with_timeout(flush)
    os._exit(status)


def exit_after_script(status: int, secs: float) -> threading.Event:
    """Ends the process `secs` after the end of its script, if other threads, such as a save's, still keep it alive.

    Exit handlers run after those threads, and have no time limit.

    Returns:
        An event that cancels it when set.
    """
    is_over = threading.Event()

    def wait() -> None:
        threading.main_thread().join()
        if not clock.REAL.wait(is_over, secs):
            exit_now(status)

    atexit.register(is_over.set)
    threading.Thread(target=wait, name="hookline-exit", daemon=True).start()
    return is_over


def flush() -> None:
    """Flushes the standard streams, as far as possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
