"""FakeClock: a clock that a test advances."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

from hookline import arguments, clock

_POLL_REAL_SECS = 0.001


class FakeClock(clock.Clock):
    """A clock that only a test advances. The `with` block installs it, and then installs the previous clock again.

    `sleep` advances the fake time at once and never blocks. `wait` and `wait_for` block the calling thread until the
    awaited event has happened, or until another thread has advanced the time past their timeout. Threads that still
    wait at the end of the `with` block are released, as if their timeout had passed.

    Args:
        start: The first reading of both `monotonic` and `time`, in seconds.
        autojump_secs: If given, a wait that stays blocked for this many *real* seconds advances the fake time to its
            own timeout. For tests in which no other thread can advance the time. Only waits of the test's own threads
            do so: the main one, the one that enters the clock, and those started afterwards.

    Example:
        >>> with FakeClock(start=100.0) as fake:
        ...     clock.sleep(2.5)
        ...     fake.advance(1.0)
        ...     clock.monotonic()
        103.5
    """

    def __init__(self, start: float = 1_000_000.0, *, autojump_secs: float | None = None) -> None:
        self._now = arguments.check_number("FakeClock", "start", start)
        if autojump_secs is not None:
            arguments.check_number("FakeClock", "autojump_secs", autojump_secs, at_least=0)
        self._autojump_secs = autojump_secs
        self._waiters = 0
        self._changed = threading.Condition()
        self._previous: clock.Clock | None = None
        self._released = False
        self._foreign_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def __enter__(self) -> FakeClock:
        if self._previous is not None:
            raise RuntimeError("FakeClock is installed already: leave its `with` block before entering it again.")
        self._released = False
        self._foreign_threads = weakref.WeakSet(threading.enumerate())
        self._foreign_threads -= {threading.current_thread(), threading.main_thread()}
        self._previous = clock.install(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._previous is not None
        clock.install(self._previous)
        self._previous = None
        self._released = True

    def monotonic(self) -> float:
        """Returns the fake time."""
        return self._now

    def time(self) -> float:
        """Returns the fake time."""
        return self._now

    def advance(self, secs: float) -> None:
        """Advances the fake time; threads whose timeout has passed continue shortly afterwards.

        Args:
            secs: The number of seconds.

        Raises:
            ValueError: `secs` is negative.
        """
        arguments.check_number("FakeClock.advance", "secs", secs)
        if secs < 0:
            raise ValueError(f"FakeClock.advance requires secs >= 0, got {secs}: time does not go back.")
        with self._changed:
            self._now += secs

    def sleep(self, secs: float) -> None:
        """Advances the fake time by `secs`, without blocking."""
        self.advance(max(secs, 0))

    def wait(self, event: threading.Event, timeout_secs: float | None) -> bool:
        """Blocks until `event` is set or the timeout has passed in fake time; returns whether it is set."""
        return self._block(event.is_set, event.wait, timeout_secs)

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_secs: float | None
    ) -> bool:
        """Blocks until `predicate()` is true or the timeout has passed in fake time; returns its last value."""
        return self._block(predicate, condition.wait, timeout_secs)

    def await_waiters(self, count: int = 1, *, real_timeout_secs: float = 10.0) -> None:
        """Blocks, in real time, until at least `count` threads wait on this clock. Call it before `advance`.

        A thread that begins to wait after `advance` would wait until a later time than the test intends.

        Args:
            count: The number of threads.
            real_timeout_secs: The longest wait, in real seconds.

        Raises:
            TimeoutError: Fewer threads wait when the real timeout has passed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiters >= count, real_timeout_secs):
                raise TimeoutError(
                    f"FakeClock.await_waiters expected {count} threads to wait on the clock within "
                    f"{real_timeout_secs} real seconds, got {self._waiters}."
                )

    def _block(self, happened: Callable[[], bool], pause: Callable[[float], bool], timeout_secs: float | None) -> bool:
        deadline = float("inf") if timeout_secs is None else self._now + timeout_secs
        jumps = timeout_secs is not None and threading.current_thread() not in self._foreign_threads
        blocked_secs, polls = 0.0, 0
        with self._counted_as_waiter():
            done = bool(happened())
            while not done and self._now < deadline and not self._released:
                # Checked when notified, as with a real clock, so that a test fails if a notification is missing. Also
                # checked at times, because a notification at the moment when a pause ends is lost.
                polls += 1
                done = (pause(_POLL_REAL_SECS) or polls % 1000 == 0) and bool(happened())
                blocked_secs += _POLL_REAL_SECS
                if jumps and self._autojump_secs is not None and blocked_secs >= self._autojump_secs:
                    with self._changed:
                        self._now = max(self._now, deadline)
        # If the event came at the same moment as the timeout, the event counts.
        return done or bool(happened())

    @contextlib.contextmanager
    def _counted_as_waiter(self) -> Iterator[None]:
        with self._changed:
            self._waiters += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiters -= 1
