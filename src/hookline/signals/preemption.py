"""Handles SIGTERM and Ctrl-C while a session is open: records them at once, and acts when the session is consistent.

The handler only records the number of the signal. It takes no lock, writes no file and runs no hook. Sessions check the
number before each run and at their end, and waits check it while they wait. A thread also receives every signal, even
while the main thread is busy outside Python, as in a compilation, where no handler can run. The thread logs the reason
for the wait, wakes waits on the coordinator, and ends the process after a second signal or after the grace period.

A session that saves treats the first signal as a request to end gracefully. Any other session catches Ctrl-C only, and
raises a KeyboardInterrupt: at once in the user's code, else as soon as the session is consistent (`interrupts`).

    Ctrl-C                           a session that saves       another session
    in the body                      number = 2                 raised there
    in the user's hook               number = 2                 raised there
    while a program is compiled      number = 2                 pending; raised at the end of `run`
    once more, 0.3 s later           raised there, or the process ends 2 s later
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from hookline import clock, log
from hookline.errors import Interrupted, Preempted
from hookline.signals import notebooks
from hookline.signals.interrupts import find_gc_callbacks, in_user_code, uninterruptible_codes
from hookline.signals.signal_listener import SignalListener, exit_after_script, exit_now, write_with_timeout

_logger = log.get_logger(__name__)

EXIT = "exit"
IGNORE = "ignore"
DEFAULT_GRACE_SECS = 120.0

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECS = 0.2
REPEAT_WINDOW_SECS: dict[int, float] = {signal.SIGTERM: 1.0, signal.SIGHUP: 1.0, signal.SIGINT: 0.3}
"""The seconds within which a repeated signal still counts as the first one.

Schedulers send a signal to a process and to its parent, which passes it on; a Ctrl-C comes from a person."""

# If a KeyboardInterrupt has not reached the main thread after this time, the thread counts as stuck.
_STUCK_SECS = 2.0

KILLED_STATUS = 128 + signal.SIGKILL
"""The exit status of a process that was ended before it could end gracefully."""


class SessionSignals:
    """The signal handling of one session.

    Args:
        grace_secs: The longest time for closing the session after the signal.
        on_shutdown: Called in a thread at the signal; wakes waits.
        describe_activity: Called in that thread; returns the session's present activity, for the log.
        is_inside: Returns whether the calling thread is within a run of the session, so that an interrupt must wait.
        enabled: Whether this session acts on signals.

    Attributes:
        signals: The signals of the process. Its `shutdown_signal` is None until any session has received a signal.
    """

    def __init__(
        self,
        grace_secs: float,
        on_shutdown: Callable[[], None],
        describe_activity: Callable[[], str],
        is_inside: Callable[[], bool],
        *,
        enabled: bool = True,
    ) -> None:
        self.grace_secs = grace_secs
        self.on_shutdown, self.describe_activity, self.is_inside, self.signals = (
            on_shutdown,
            describe_activity,
            is_inside,
            _signals,
        )
        self._enabled = enabled
        self._last_signal: int | None = None

    def open(self, *, graceful: bool) -> None:
        """Starts to catch signals, unless this session ignores them.

        Args:
            graceful: Whether a signal is a request to end gracefully; else Ctrl-C is a `KeyboardInterrupt`.
        """
        if self._enabled:
            _signals.add(self, graceful)

    def close(self) -> None:
        """Restores the previous handlers if this is the last session, and keeps a received signal."""
        received = _signals.remove(self)
        self._last_signal = received if self._enabled else None

    @property
    def shutdown_signal(self) -> int | None:
        """The signal that requested the end of the process, if any."""
        return (shutdown_signal() if self._enabled else None) or self._last_signal

    def check(self) -> None:
        """Raises `Preempted` or `Interrupted` if a signal has requested the end of the process."""
        if _signals.shutdown_signal is not None and (error := self.error()) is not None:
            raise error

    def error(self) -> Preempted | Interrupted | None:
        """Returns the error with which to leave the session because of a signal, if any."""
        return None if self.shutdown_signal is None else _error(self.shutdown_signal)


def received_signal() -> int | None:
    """Returns the received signal, which may have no effect yet; None without one."""
    return _signals.received


def set_agreed_signal(number: int | None = None) -> None:
    """Makes signals take effect only after the SPMD processes have agreed on it.

    Args:
        number: The agreed signal, a request to every process to end; None if there is none yet.
    """
    _signals.needs_agreement = number is None
    if number is not None:
        _signals.shutdown_signal = _signals.shutdown_signal or number


def shutdown_signal() -> int | None:
    """Returns the signal that requested the end of this process, if an open session responds to signals; else None."""
    return None if _signals.shutdown_signal is None or not _signals.graceful else _signals.shutdown_signal


def is_active() -> bool:
    """Returns whether an open session responds to signals."""
    return len(_signals.graceful) > 0


def must_exit_now() -> bool:
    """Returns whether the process must end now without saving, after a second Ctrl-C or after the grace period."""
    return _signals.must_exit_now and shutdown_signal() is not None


def has_interrupted_jax() -> bool:
    """Returns whether a second Ctrl-C came during a compilation, which JAX 0.10 continues in a thread.

    At the end of the process JAX would wait for that thread, or crash. Always false in a shell or notebook.
    """
    return _signals.has_interrupted_jax and not hasattr(sys, "ps1")


def remaining_secs() -> float:
    """Returns the seconds left for closing the session; infinity without a signal."""
    if _signals.must_exit_now:
        return 0.0
    return float("inf") if shutdown_signal() is None else max(_signals.deadline - clock.REAL.monotonic(), 0.0)


def check() -> None:
    """Raises `Preempted` if a signal has requested the end, unless unfinished work comes first; or a pending Ctrl-C.

    Waits call it each time they poll. In a notebook Ctrl-C raises `Interrupted` instead of `Preempted`.

    Example:
        >>> check()
    """
    number = shutdown_signal()
    if number is not None and not must_finish():
        raise _error(number)
    raise_pending_interrupt()


def _error(number: int) -> Preempted | Interrupted:
    is_of_cell = number == signal.SIGINT and notebooks.ipython_shell() is not None
    return Interrupted() if is_of_cell else Preempted(number)


def sleep(secs: float) -> None:
    """Sleeps, unless a signal requests the end of this process.

    Raises:
        Preempted: A signal has requested the end of the process.

    Example:
        >>> sleep(0)
    """
    if not (_signals.graceful or _signals.interrupt_only):
        clock.sleep(secs)
        return
    deadline = clock.monotonic() + secs
    check()
    with waiting():
        while (left := deadline - clock.monotonic()) > 0:
            clock.sleep(min(left, _POLL_SECS))
            check()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Declares that the main thread, if it is this one, only waits, with `sleep`: a signal takes effect at once.

    Example:
        >>> with waiting():
        ...     sleep(0)
    """
    before = _signals.is_waiting
    _signals.is_waiting = before or threading.current_thread() is threading.main_thread()
    try:
        yield
    finally:
        _signals.is_waiting = before


@contextlib.contextmanager
def finishing(is_half_done: Callable[[], bool]) -> Iterator[None]:
    """Declares that this thread has unfinished work, which must be finished before a signal takes effect.

    Example:
        >>> with finishing(lambda: True):
        ...     must_finish()  # no signal has come
        False
    """
    token = _half_done.set(is_half_done)
    try:
        yield
    finally:
        _half_done.reset(token)


def must_finish() -> bool:
    """Returns whether a signal has come while this thread has unfinished work, so that its waits continue."""
    is_half_done = _half_done.get()
    return is_half_done is not None and shutdown_signal() is not None and is_half_done()


_half_done: ContextVar[Callable[[], bool] | None] = ContextVar("half_done", default=None)


class _ProcessSignals:
    """The signals of this process, caught while an open session responds to them.

    Attributes:
        shutdown_signal: The signal that requested the end of the process; None without one.
        interrupt_pending: Whether a Ctrl-C is delayed until the session is consistent.
        is_waiting: Whether the main thread only waits.
        graceful: The `SessionSignals` of sessions that end gracefully.
        interrupt_only: The `SessionSignals` of other sessions.
    """

    def __init__(self) -> None:
        self.interrupt_pending = False
        self.handled_at = float("-inf")
        self.shutdown_signal: int | None = None
        self.received: int | None = None
        self.received_at: float | None = None
        self.deadline = float("inf")
        self.must_exit_now = False
        self.is_waiting = self._ends_wait = False
        # Whether a signal has no effect before the SPMD processes have agreed on it: see `set_agreed_signal`.
        self.needs_agreement = False
        self.interrupted_at: float | None = None
        self._interruptions = 0
        self.has_interrupted_jax = False
        self._cancel_exit = threading.Event()
        # Weak references: a session that is dropped without being closed no longer counts.
        self.graceful: weakref.WeakSet[SessionSignals] = weakref.WeakSet()
        self.interrupt_only: weakref.WeakSet[SessionSignals] = weakref.WeakSet()
        self._keeps_interrupt = False
        self._previous_handlers: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._forking = threading.local()
        self._listener: SignalListener | None = None

    def add(self, watch: SessionSignals, graceful: bool) -> None:
        with self._lock:
            if not (self.graceful or self.interrupt_only):  # Dropped sessions may have left handlers behind.
                self._uninstall()
            if not self.graceful:
                self._reset()
                self.has_interrupted_jax = False
                self._cancel_exit.set()
            (self.interrupt_only if graceful else self.graceful).discard(watch)
            (self.graceful if graceful else self.interrupt_only).add(watch)
            self._install()

    def reinstall(self) -> None:
        """Catches signals again if other code has replaced the handlers of an open session, as a notebook does."""
        with self._lock:
            if self.graceful or self.interrupt_only:
                if self.interrupted_at is not None and not self.graceful:
                    self._reset()  # A second Ctrl-C has ended a cell or a run; this is the next one.
                    self._cancel_exit.set()
                self._install()

    def remove(self, watch: SessionSignals) -> int | None:
        """Removes a session, and returns the signal received so far; previous handlers get later signals."""
        with self._lock:
            # The listener may not have come to it yet. One that another SPMD process has received is announced there.
            if self.received is not None and self.received_at is None and watch in self.graceful:
                self._announce(self.received)
            self.graceful.discard(watch)
            self.interrupt_only.discard(watch)
            received = self.shutdown_signal
            if not (self.graceful or self.interrupt_only):
                self._uninstall()
            if not self.graceful:
                self._reset()
            return received

    def _reset(self) -> None:
        # A pending Ctrl-C is kept: the current call raises it.
        self.shutdown_signal, self.received, self.received_at, self.deadline = None, None, None, float("inf")
        self.must_exit_now, self.interrupted_at = False, None

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        find_gc_callbacks()
        # Python's plain interactive shell keeps its KeyboardInterrupt, because a SystemExit would end it.
        self._keeps_interrupt = hasattr(sys, "ps1") and notebooks.ipython_shell() is None
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            # Ignored signals stay ignored: this is how `nohup` and shells protect a background process.
            if handler in (signal.SIG_IGN, None):
                continue
            # The signal is not a request to end, so other code's handler is kept.
            is_plain = not self.graceful or (number == signal.SIGINT and self._keeps_interrupt)
            if is_plain and handler not in (signal.default_int_handler, self.handle):
                continue
            if handler == self.handle:
                # Other code may have taken the signal from Python unnoticed, as `jax.distributed.initialize` does.
                signal.signal(number, self.handle)
                continue
            if self._listener is None:
                self._listener = SignalListener(lambda: self.deadline, self._on_signal)
            self._previous_handlers[number] = handler
            signal.signal(number, self.handle)

    def _uninstall(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Until the main thread restores it, our handler calls the previous one.
        for number, handler in self._previous_handlers.items():
            if signal.getsignal(number) == self.handle:
                signal.signal(number, handler)
        self._previous_handlers.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        self.handled_at = clock.REAL.monotonic()
        if self.must_exit_now and number == signal.SIGINT:
            # The received signal, and the one that `_exit_now` sends because of it, must interrupt only once.
            now, before = self.handled_at, self.interrupted_at
            if before is None or now - before > REPEAT_WINDOW_SECS[signal.SIGINT]:
                self.interrupted_at = now
                self._interruptions += 1
                self.has_interrupted_jax = frame is not None and frame.f_globals.get("__name__", "").startswith("jax")
                self.interrupt_pending = frame is not None and frame.f_code in uninterruptible_codes
                if not self.interrupt_pending:
                    signal.default_int_handler(number, frame)
        elif not self._is_shutdown_request(number):
            self.interrupt_pending = number == signal.SIGINT and self._must_defer(frame)
            if not self.interrupt_pending:
                self._call_previous_handler(number, frame)
        elif self.needs_agreement:
            self.received = self.received or number
        elif self.shutdown_signal is None:
            self.shutdown_signal, self.received, self._ends_wait = number, number, self.is_waiting
        if self._listener is not None:
            self._listener.notify(number)

    def _is_shutdown_request(self, number: int) -> bool:
        """Returns whether a signal is a request to end gracefully."""
        return len(self.graceful) > 0 and not (number == signal.SIGINT and self._keeps_interrupt)

    def _must_defer(self, frame: FrameType | None) -> bool:
        """Returns whether the main thread is within a session's run, and not in the user's code."""
        is_inside = False
        for watches in (self.graceful, self.interrupt_only):
            for watch in watches:
                is_inside = is_inside or watch.is_inside()
        return is_inside and not in_user_code(frame)

    def raise_pending_interrupt(self) -> None:
        """Raises, in the main thread, a Ctrl-C that was pending until the session is consistent, as it is now."""
        if self.interrupt_pending and threading.get_ident() == threading.main_thread().ident:
            self.interrupt_pending, self.received_at = False, None
            raise KeyboardInterrupt

    def _call_previous_handler(self, number: int, frame: FrameType | None) -> None:
        before = self._previous_handlers.get(number)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _on_signal(self, number: int | None) -> None:
        """Reacts, in a thread, to a signal, or to the deadline if `number` is None."""
        if number is None:
            self._on_deadline()
        elif self.must_exit_now or not self._is_installed(number):
            return
        elif not self._is_shutdown_request(number):
            self._on_interrupt()
        elif self.received_at is None:
            self._begin_shutdown(number)
        elif clock.REAL.monotonic() - self.received_at > REPEAT_WINDOW_SECS[number]:
            self._exit_now(number, f"{signal.Signals(number).name} again")

    def _begin_shutdown(self, number: int) -> None:
        if self.needs_agreement:
            self.shutdown_signal = None
        elif self.shutdown_signal is None:  # This thread may be faster than the handler.
            self.shutdown_signal, self._ends_wait = number, self.is_waiting
        for watch in self._announce(number):
            watch.on_shutdown()

    def _announce(self, number: int) -> list[SessionSignals]:
        """Says how the training ends, and sets the deadline; returns the sessions that end."""
        self.received = number
        watches = list(self.graceful)
        grace_secs = min((watch.grace_secs for watch in watches), default=DEFAULT_GRACE_SECS)
        self.received_at = clock.REAL.monotonic()
        self.deadline = self.received_at + grace_secs
        doing = " and ".join(dict.fromkeys(watch.describe_activity() for watch in watches))
        again = "press Ctrl-C again" if number == signal.SIGINT else "repeat it"
        how = f"the training ends after {doing}, within {grace_secs:g} s; {again} to end it at once"
        if self._ends_wait:
            how = "the wait ends at once, and the training with it"
        write_with_timeout(lambda: _logger.warning("%s: %s.", signal.Signals(number).name, how))
        return watches

    def _on_interrupt(self) -> None:
        """Records a Ctrl-C that is no request to end; a second one, while the first is pending, interrupts at once."""
        now = clock.REAL.monotonic()
        if not self._is_interrupt_waiting():
            self.received, self.received_at, self.deadline = signal.SIGINT, now, now + _STUCK_SECS
        elif self.received_at is not None and now - self.received_at > REPEAT_WINDOW_SECS[signal.SIGINT]:
            self._exit_now(signal.SIGINT, "SIGINT again")

    def _is_interrupt_waiting(self) -> bool:
        """Returns whether a received Ctrl-C is pending, or has not reached the main thread, which is stuck in C++.

        The handler may be called somewhat before the thread receives its signal.
        """
        return self.received_at is not None and (
            self.interrupt_pending or self.handled_at < self.received_at - _STUCK_SECS / 2
        )

    def _exit_now(self, number: int, why: str) -> None:
        """Ends the process, or interrupts its main thread with a KeyboardInterrupt."""
        write_with_timeout(lambda: _logger.error("%s: ending at once, without saving any more.", why))
        if number != signal.SIGINT:
            exit_now(KILLED_STATUS)
        before = self._interruptions
        self.must_exit_now, self.deadline = True, clock.REAL.monotonic() + _STUCK_SECS
        if not hasattr(sys, "ps1"):
            self._cancel_exit = exit_after_script(128 + number, _STUCK_SECS)
        # A real signal wakes a waiting main thread; setting Python's flag alone would not. If the received signal has
        # been handled since, the main thread is interrupted already, and may be in its next run.
        if self._interruptions == before:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _on_deadline(self) -> None:
        """Interrupts a training that has not ended in time; then ends the process, unless it is a shell or notebook."""
        number = self.shutdown_signal or self.received or signal.SIGTERM
        if not self.must_exit_now and not self.graceful:
            self.deadline = float("inf")
            if self._is_interrupt_waiting():
                doing = " and ".join(dict.fromkeys(watch.describe_activity() for watch in self.interrupt_only))
                write_with_timeout(lambda: _logger.warning("Ctrl-C: waiting for %s; repeat it to end at once.", doing))
        elif not self.must_exit_now:
            self._exit_now(number, "The time to leave the training is over")
        elif self._is_installed(signal.SIGINT) and self.interrupted_at is None and not hasattr(sys, "ps1"):
            exit_now(128 + number)
        else:
            self.deadline = float("inf")

    def _is_installed(self, number: int) -> bool:
        """Returns whether this module catches a signal."""
        is_open = len(self.graceful) > 0 or len(self.interrupt_only) > 0
        return is_open and number in _NUMBERS and signal.getsignal(number) == self.handle

    def before_fork(self) -> None:
        """Blocks signals, because the parent would receive one that reaches a child before the child has reset."""
        if self._previous_handlers:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)

    def after_fork(self) -> None:
        """Unblocks signals, in both processes."""
        mask = vars(self._forking).pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def reset_after_fork(self) -> None:
        """Resets everything in a forked process, whose signals concern only itself."""
        self._lock = threading.Lock()
        if self._listener is not None:
            self._listener.close_after_fork()
            self._listener = None
        self.interrupt_pending, self.graceful, self.interrupt_only = False, weakref.WeakSet(), weakref.WeakSet()
        self._uninstall()
        self._reset()
        self.after_fork()


_signals = _ProcessSignals()
reinstall_handlers, raise_pending_interrupt = _signals.reinstall, _signals.raise_pending_interrupt
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_signals.before_fork, after_in_parent=_signals.after_fork, after_in_child=_signals.reset_after_fork
    )
