"""Signals while a session is open: SIGTERM and Ctrl-C are recorded at once, and handled when the session is whole.

The handler only records the number of the signal. It takes no lock, writes no file and runs no hook. Sessions check the
number before each run and at their end, and waits check it while they wait. A thread also hears every signal, even
while the main thread is busy outside Python, as in a compilation, where no handler can run. The thread logs the reason
for the wait, wakes waits on the coordinator, and ends the process when a second signal comes or the time is over.

A session that saves takes the first signal as a request to end in order. Any other session catches Ctrl-C alone, and a
KeyboardInterrupt comes of it: at once in the user's code, else as soon as the session is whole (`interrupts`).

    Ctrl-C comes                     a session that saves       another session
    in the body                      number = 2                 raised there
    in a hook of the user's          number = 2                 raised there
    while a program is compiled      number = 2                 noted; raised at the end of `run`
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
from hookline.signals.interrupts import gates, is_in_users_code, know_collectors
from hookline.signals.signal_listener import Listener, exit_after_script, exit_at_once, tell

_logger = log.of(__name__)

EXIT = "exit"
IGNORE = "ignore"
DEFAULT_GRACE_SECS = 120.0

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY_SECS = 0.2
SAME_SECS: dict[int, float] = {signal.SIGTERM: 1.0, signal.SIGHUP: 1.0, signal.SIGINT: 0.3}
"""The seconds within which a repeated signal still counts as the first one.

Schedulers send a signal to a process and to its parent, which passes it on; a Ctrl-C comes from a person."""

# The time for a KeyboardInterrupt to reach the main thread; after it that thread counts as stuck.
_STUCK_SECS = 2.0

KILLED = 128 + signal.SIGKILL
"""The exit status of what was asked to end, and was ended before it could do so in order."""


class Watch:
    """The signal handling of one session.

    Args:
        grace_secs: The longest time for closing the session after the signal.
        stop: Called in a thread when the signal comes; wakes waits.
        doing: Called in that thread; returns the session's present activity, for the log.
        is_inside: Returns whether the calling thread is inside the session, so that an interrupt must wait.
        heeds: Whether this session acts on signals.

    Attributes:
        signals: The signals of the process. Its `number` is None until one has come to any session.
    """

    def __init__(
        self,
        grace_secs: float,
        stop: Callable[[], None],
        doing: Callable[[], str],
        is_inside: Callable[[], bool],
        *,
        heeds: bool = True,
    ) -> None:
        self.grace_secs = grace_secs
        self.stop, self.doing, self.is_inside, self.signals = stop, doing, is_inside, _signals
        self._heeds = heeds
        self._last: int | None = None

    def open(self, *, in_order: bool) -> None:
        """Starts to catch signals, unless this session ignores them.

        Args:
            in_order: Whether a signal is a request to end in order; else Ctrl-C is a `KeyboardInterrupt`.
        """
        if self._heeds:
            _signals.add(self, in_order)

    def close(self) -> None:
        """Puts the previous handlers back if this is the last session; remembers a signal that came."""
        came = _signals.remove(self)
        self._last = came if self._heeds else None

    @property
    def number(self) -> int | None:
        """The signal that asked the process to end, if any."""
        return (asked() if self._heeds else None) or self._last

    def check(self) -> None:
        """Raises `Preempted` if the process was asked to end."""
        if _signals.number is not None and (error := self.error()) is not None:
            raise error

    def error(self) -> Preempted | Interrupted | None:
        """Returns the error with which to leave the session because of a signal, if any."""
        return None if self.number is None else _error(self.number)


def heard() -> int | None:
    """Returns the signal that was heard, whether or not it has an effect yet."""
    return _signals.heard


def agree(number: int | None = None) -> None:
    """Makes signals take effect only after the processes that run in step have agreed on it.

    Args:
        number: The signal that they have agreed on, so that every process is asked to end; None if there is none yet.
    """
    _signals.agrees = number is None
    if number is not None:
        _signals.number = _signals.number or number


def asked() -> int | None:
    """Returns the signal that asked this process to end, if an open session responds to signals; else None."""
    return None if _signals.number is None or not _signals.watches else _signals.number


def heeded() -> bool:
    """Returns whether an open session responds to signals."""
    return len(_signals.watches) > 0


def urgent() -> bool:
    """Returns whether the process must end now without saving: a second Ctrl-C came, or the time is over."""
    return _signals.urgent and asked() is not None


def has_interrupted_jax() -> bool:
    """Returns whether a second Ctrl-C came during a compilation, which JAX 0.10 continues in a thread.

    At the end of the process, which is not that of a shell or notebook, JAX would wait for it, or crash.
    """
    return _signals.has_interrupted_jax and not hasattr(sys, "ps1")


def left_secs() -> float:
    """Returns the seconds left for closing the session; infinity if no signal came."""
    if _signals.urgent:
        return 0.0
    return float("inf") if asked() is None else max(_signals.deadline - _real_time.monotonic(), 0.0)


def check() -> None:
    """Raises `Preempted` if this process was asked to end, unless half-done work must be finished first; or Ctrl-C.

    Waits call it each time they check.

    Example:
        >>> check()
    """
    number = asked()
    if number is not None and not must_finish():
        raise _error(number)
    raise_noted()


def _error(number: int) -> Preempted | Interrupted:
    is_of_cell = number == signal.SIGINT and notebooks.shell() is not None
    return Interrupted() if is_of_cell else Preempted(number)


def sleep(secs: float) -> None:
    """Sleeps, unless this process is asked to end.

    Raises:
        Preempted: The process was asked to end.

    Example:
        >>> sleep(0)
    """
    if not (_signals.watches or _signals.others):
        clock.sleep(secs)
        return
    deadline = clock.monotonic() + secs
    check()
    while (left := deadline - clock.monotonic()) > 0:
        clock.sleep(min(left, _LOOK_EVERY_SECS))
        check()


@contextlib.contextmanager
def finishing(is_half_done: Callable[[], bool]) -> Iterator[None]:
    """Declares that this thread's work is half done and must be finished before a signal takes effect.

    Example:
        >>> with finishing(lambda: True):
        ...     must_finish()  # nobody has asked the process to end
        False
    """
    token = _half_done.set(is_half_done)
    try:
        yield
    finally:
        _half_done.reset(token)


def must_finish() -> bool:
    """Returns whether this process was asked to end while this thread has half-done work, so that waits continue."""
    is_half_done = _half_done.get()
    return is_half_done is not None and asked() is not None and is_half_done()


_half_done: ContextVar[Callable[[], bool] | None] = ContextVar("half_done", default=None)


class _Signals:
    """The signals of this process, caught while an open session responds to them.

    Attributes:
        number: The signal that asked the process to end; None until one has.
        noted: Whether a Ctrl-C waits until the session is whole.
        watches: Those of sessions that end in order.
        others: Those of other sessions.
    """

    def __init__(self) -> None:
        self.noted = False
        self.handled_at = float("-inf")
        self.number: int | None = None
        self.heard: int | None = None
        self.heard_at: float | None = None
        self.deadline = float("inf")
        self.urgent = False
        # Whether a signal has no effect before the processes that run in step have agreed on it: see `agree`.
        self.agrees = False
        self.interrupted_at: float | None = None
        self.has_interrupted_jax = False
        self._exit = threading.Event()
        # Weak references: a session that is dropped without being closed no longer counts.
        self.watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self.others: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._keeps_interrupt = False
        self._before: dict[int, Any] = {}
        self._changing = threading.Lock()
        self._forking = threading.local()
        self._listener: Listener | None = None

    def add(self, watch: Watch, in_order: bool) -> None:
        with self._changing:
            if not (self.watches or self.others):  # Dropped sessions may have left handlers behind.
                self._uninstall()
            if not self.watches:
                self._reset()
                self.has_interrupted_jax = False
                self._exit.set()
            (self.others if in_order else self.watches).discard(watch)
            (self.watches if in_order else self.others).add(watch)
            self._install()

    def renew(self) -> None:
        """Catches signals again if other code has replaced the handlers of an open session, as a notebook does."""
        with self._changing:
            if self.watches or self.others:
                if self.interrupted_at is not None and not self.watches:
                    self._reset()  # A second Ctrl-C has ended a cell or a run, and the next one goes on.
                    self._exit.set()
                self._install()

    def remove(self, watch: Watch) -> int | None:
        """Returns the signal that has come so far; later signals are passed on."""
        with self._changing:
            self.watches.discard(watch)
            self.others.discard(watch)
            came = self.number
            if not (self.watches or self.others):
                self._uninstall()
            if not self.watches:
                self._reset()
            return came

    def _reset(self) -> None:
        # What is noted stays: the call under way raises it.
        self.number, self.heard, self.heard_at, self.deadline = None, None, None, float("inf")
        self.urgent, self.interrupted_at = False, None

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        know_collectors()
        # Python's plain interactive shell keeps its KeyboardInterrupt, because a SystemExit would end it.
        self._keeps_interrupt = hasattr(sys, "ps1") and notebooks.shell() is None
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            # Ignored signals stay ignored: this is how `nohup` and shells protect a background process.
            if handler in (signal.SIG_IGN, None):
                continue
            # No request is made of it: another's handler is left alone.
            is_plain = not self.watches or (number == signal.SIGINT and self._keeps_interrupt)
            if is_plain and handler not in (signal.default_int_handler, self.catch):
                continue
            if handler == self.catch:
                # Other code may have taken the signal from Python unnoticed, as `jax.distributed.initialize` does.
                signal.signal(number, self.catch)
                continue
            if self._listener is None:
                self._listener = Listener(lambda: self.deadline, self._react)
            self._before[number] = handler
            signal.signal(number, self.catch)

    def _uninstall(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Until then, the handler does what the previous one did.
        for number, handler in self._before.items():
            if signal.getsignal(number) == self.catch:
                signal.signal(number, handler)
        self._before.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def catch(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        self.handled_at = _real_time.monotonic()
        if self.urgent and number == signal.SIGINT:
            # The signal that was heard and the one that `_end_now` sends for it must interrupt only once.
            now, before = self.handled_at, self.interrupted_at
            if before is None or now - before > SAME_SECS[signal.SIGINT]:
                self.interrupted_at = now
                self.has_interrupted_jax = frame is not None and frame.f_globals.get("__name__", "").startswith("jax")
                self.noted = frame is not None and frame.f_code in gates
                if not self.noted:
                    signal.default_int_handler(number, frame)
        elif not self._is_request(number):
            self.noted = number == signal.SIGINT and self._must_wait(frame)
            if not self.noted:
                self._pass_on(number, frame)
        elif self.agrees:
            self.heard = self.heard or number
        elif self.number is None:
            self.number = number
        if self._listener is not None:
            self._listener.notify(number)

    def _is_request(self, number: int) -> bool:
        """Returns whether a signal is a request to end in order."""
        return len(self.watches) > 0 and not (number == signal.SIGINT and self._keeps_interrupt)

    def _must_wait(self, frame: FrameType | None) -> bool:
        """Returns whether the main thread is inside a session, and not in the user's code."""
        is_inside = False
        for watches in (self.watches, self.others):
            for watch in watches:
                is_inside = is_inside or watch.is_inside()
        return is_inside and not is_in_users_code(frame)

    def raise_noted(self) -> None:
        """Raises, in the main thread, a Ctrl-C that came while that was inside a session, which is whole now."""
        if self.noted and threading.get_ident() == threading.main_thread().ident:
            self.noted, self.heard_at = False, None
            raise KeyboardInterrupt

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _react(self, number: int | None) -> None:
        """Reacts, in a thread, to a signal, or to the end of the time."""
        if number is None:
            self._end_after_time()
        elif self.urgent or not self._is_caught(number):
            return
        elif not self._is_request(number):
            self._hear_interrupt()
        elif self.heard_at is None:
            self._hear(number)
        elif _real_time.monotonic() - self.heard_at > SAME_SECS[number]:
            self._end_now(number, f"{signal.Signals(number).name} again")

    def _hear(self, number: int) -> None:
        self.number = None if self.agrees else self.number or number
        self.heard = number
        watches = list(self.watches)
        grace_secs = min((watch.grace_secs for watch in watches), default=DEFAULT_GRACE_SECS)
        self.heard_at = _real_time.monotonic()
        self.deadline = self.heard_at + grace_secs
        doing = " and ".join(dict.fromkeys(watch.doing() for watch in watches))
        name = signal.Signals(number).name
        tell(
            lambda: _logger.warning(
                "%s: leaving the training. Waiting for %s, then the session closes, within %g s; repeat it to end at "
                "once.",
                name,
                doing,
                grace_secs,
            )
        )
        for watch in watches:
            watch.stop()

    def _hear_interrupt(self) -> None:
        """Hears a Ctrl-C that is no request; a second one, while the first one waits, interrupts at once."""
        now = _real_time.monotonic()
        if not self._is_waiting():
            self.heard, self.heard_at, self.deadline = signal.SIGINT, now, now + _STUCK_SECS
        elif self.heard_at is not None and now - self.heard_at > SAME_SECS[signal.SIGINT]:
            self._end_now(signal.SIGINT, "SIGINT again")

    def _is_waiting(self) -> bool:
        """Returns whether a Ctrl-C that was heard is noted, or has not reached the main thread, which is stuck in C++.

        The handler may be called somewhat before its signal is heard.
        """
        return self.heard_at is not None and (self.noted or self.handled_at < self.heard_at - _STUCK_SECS / 2)

    def _end_now(self, number: int, why: str) -> None:
        """Ends the process, or interrupts its main thread with a KeyboardInterrupt."""
        tell(lambda: _logger.error("%s: ending at once, without saving any more.", why))
        if number != signal.SIGINT:
            exit_at_once(KILLED)
        self.urgent, self.deadline = True, _real_time.monotonic() + _STUCK_SECS
        if not hasattr(sys, "ps1"):
            self._exit = exit_after_script(128 + number, _STUCK_SECS)
        # A real signal wakes a waiting main thread; setting Python's flag alone would not.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _end_after_time(self) -> None:
        """Ends a training that was not left in time; if that fails, the process, unless it is a shell or notebook."""
        number = self.number or self.heard or signal.SIGTERM
        if not self.urgent and not self.watches:
            self.deadline = float("inf")
            if self._is_waiting():
                doing = " and ".join(dict.fromkeys(watch.doing() for watch in self.others))
                tell(lambda: _logger.warning("Ctrl-C: waiting for %s; repeat it to end at once.", doing))
        elif not self.urgent:
            self._end_now(number, "The time to leave the training is over")
        elif self._is_caught(signal.SIGINT) and self.interrupted_at is None and not hasattr(sys, "ps1"):
            exit_at_once(128 + number)
        else:
            self.deadline = float("inf")

    def _is_caught(self, number: int) -> bool:
        """Returns whether this module catches a signal."""
        is_open = len(self.watches) > 0 or len(self.others) > 0
        return is_open and number in _NUMBERS and signal.getsignal(number) == self.catch

    def before_fork(self) -> None:
        """Blocks signals, because the parent would hear one that reaches a child before the child has reset."""
        if self._before:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)

    def after_fork(self) -> None:
        """Lets signals through again, in both processes."""
        mask = vars(self._forking).pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forget(self) -> None:
        """Resets everything in a forked process, whose signals concern only itself."""
        self._changing = threading.Lock()
        if self._listener is not None:
            self._listener.forget()
            self._listener = None
        self.noted, self.watches, self.others = False, weakref.WeakSet(), weakref.WeakSet()
        self._uninstall()
        self._reset()
        self.after_fork()


_real_time = clock.Clock()
_signals = _Signals()
renew, raise_noted = _signals.renew, _signals.raise_noted
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_signals.before_fork, after_in_parent=_signals.after_fork, after_in_child=_signals.forget
    )
