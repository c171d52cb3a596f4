"""Threads that stop together: a stop flag with the exception that caused it, and a thread that repeats a task."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from hookline import arguments, clock, errors, log
from hookline.graph import placement

_INTERNAL_MODULES = ("hookline.monitored.", "hookline.coordination.", "hookline.hooks.base")

_logger = log.get_logger(__name__)
ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


def caller() -> str:
    """Describes the caller of the session: the function of a hook or of the user, with file and line."""
    frame = sys._getframe(1)
    while f"{frame.f_globals.get('__name__')}".startswith(_INTERNAL_MODULES) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_qualname}, {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class Coordinator:
    """Stops threads together, and passes an exception from one of them to the thread that joins them.

    Any thread may call any method at any time. The first call of `request_stop` decides the outcome. If it reports an
    exception that is not a clean stop, `join` and `raise_requested_exception` raise it, with the traceback it had when
    it was reported.

    Args:
        clean_stop_exception_types: Exceptions that stop the threads without being an error. None means
            `(OutOfRangeError,)`, the end of the input; `()` means that every exception is an error.

    Example:
        >>> coord = Coordinator()
        >>> def work():
        ...     with coord.stop_on_exception():
        ...         raise ValueError("bad record 7")
        >>> thread = threading.Thread(target=work)
        >>> thread.start()
        >>> coord.join([thread])
        Traceback (most recent call last):
        ...
        ValueError: bad record 7

    References:
        `tf.train.Coordinator`. Differences: an exception after the first stop request is logged, not silently lost;
        `stop_on_exception` reports a `KeyboardInterrupt` or `SystemExit` and lets it propagate, instead of holding it
        back until `join`; `join` also waits for threads that are registered while it waits.
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        if clean_stop_exception_types is None:
            clean_stop_exception_types = (errors.OutOfRangeError,)
        kinds = arguments.check_list("Coordinator", "clean_stop_exception_types", clean_stop_exception_types)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"Coordinator requires exceptions as clean_stop_exception_types, got {kind!r}.")
        self._clean_stop_exception_types = tuple(kinds)
        # The lock is reentrant, so a signal handler may request a stop wherever it interrupts the main thread.
        self._changed = threading.Condition()
        self._stop_requested, self._stop_requested_by = False, ""
        self._joined = False
        self._error: tuple[BaseException, TracebackType | None] | None = None
        self._registered: list[threading.Thread] = []
        self._on_stop: list[Callable[[], object]] = []

    @property
    def joined(self) -> bool:
        """Whether `join` has ended, by returning or raising, since the last `clear_stop`."""
        return self._joined

    @property
    def stop_requested_by(self) -> str:
        """The code that requested the stop, or its error, in words."""
        return self._stop_requested_by

    def should_stop(self) -> bool:
        """Returns whether a stop was requested. Takes no lock: call it on every step."""
        return self._stop_requested

    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """Requests that all threads stop.

        Only the first call records its exception; a later one is logged. After `join` nobody would see a recorded
        exception, so it is raised here.

        Args:
            ex: The reason: an exception, or the tuple that `sys.exc_info()` returns in an `except` block. None, or an
                exception of a clean type, is a normal stop. Anything else is recorded as a `ValueError`, so that `join`
                reports the mistake and the threads still stop.

        Raises:
            BaseException: `ex` itself, after `join`.

        Example:
            >>> coord = Coordinator()
            >>> coord.request_stop(errors.OutOfRangeError(None, None, "no more records"))
            >>> coord.should_stop(), coord.join()
            (True, None)
        """
        error = self._to_error(ex)
        with self._changed:
            if self._joined:
                self._raise(error)
            elif not self._stop_requested:
                if error is not None:
                    _logger.info("Error reported to the coordinator: %r", error[0])
                self._error = error
                self._stop_requested_by = f"{type(error[0]).__name__}: {error[0]}" if error is not None else caller()
                self._stop_requested = True
                self._changed.notify_all()
                for callback in self._on_stop:
                    callback()
            elif error is not None and (self._error is None or self._error[0] is not error[0]):
                _logger.warning("Error reported after a stop was requested, not raised: %r", error[0])

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Registers a function to call when a stop is requested, or at once if it was; for example to wake other waits.

        Args:
            callback: Called by the thread that requests the stop. It must not block and must not raise.

        Example:
            >>> coord = Coordinator()
            >>> coord.on_stop(lambda: print("over"))
            >>> coord.request_stop()
            over

        References:
            None in `tf.train`.
        """
        arguments.check_callable("Coordinator.on_stop", "callback", callback)
        with self._changed:
            self._on_stop.append(callback)
            if self._stop_requested:
                callback()

    def clear_stop(self) -> None:
        """Resets the stop, its exception, and `joined`, as in a new coordinator.

        Threads that were registered and not joined stay registered.
        """
        with self._changed:
            self._joined = False
            self._error = None
            self._stop_requested = False

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Blocks until a stop is requested or the time is over.

        Args:
            timeout: The longest wait in seconds; None for no limit.

        Returns:
            Whether a stop was requested.

        Example:
            >>> Coordinator().wait_for_stop(timeout=0)
            False
        """
        if timeout is not None:
            arguments.check_number("Coordinator.wait_for_stop", "timeout", timeout)
        with self._changed:
            return clock.wait_for(self._changed, self.should_stop, timeout)

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Returns a context manager that reports an exception of its body through `request_stop` and suppresses it.

        So the code after the `with` block runs. `KeyboardInterrupt` and `SystemExit` concern this very thread: they are
        reported and also reach the caller. After `join` every exception reaches the caller.

        Example:
            >>> coord = Coordinator()
            >>> with coord.stop_on_exception():
            ...     raise ValueError("bad record 7")
            >>> coord.should_stop()
            True
        """
        try:
            yield
        except Exception as error:
            self.request_stop(error)
        except (KeyboardInterrupt, SystemExit) as error:
            self.request_stop(error)
            raise

    def register_thread(self, thread: threading.Thread) -> None:
        """Adds a thread to those that `join` waits for.

        Args:
            thread: Started or not; one that never starts counts as finished.
        """
        arguments.check_has("Coordinator.register_thread", "thread", thread, "a thread", "is_alive")
        with self._changed:
            if thread not in self._registered:
                self._registered.append(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Waits until all threads have ended, and raises the exception that one of them reported.

        Without a stop request it waits as long as necessary. After a request it waits at most the grace period. In the
        end no thread is registered any more, not even one that is still alive.

        Args:
            threads: Threads to wait for in addition to the registered ones.
            stop_grace_period_secs: Seconds that the threads may take to end after a stop request.
            ignore_live_threads: Whether to log, instead of raising, that threads are alive after the grace period.

        Raises:
            BaseException: The exception recorded by `request_stop`, even if threads are alive.
            RuntimeError: Threads are alive after the grace period; the message names them.

        Example:
            >>> coord = Coordinator()
            >>> thread = threading.Thread(target=coord.wait_for_stop)
            >>> thread.start()
            >>> coord.request_stop()
            >>> coord.join([thread])
            >>> coord.joined
            True
        """
        arguments.check_number("Coordinator.join", "stop_grace_period_secs", stop_grace_period_secs)
        given = arguments.check_list("Coordinator.join", "threads", threads, optional=True)
        for thread in given:
            arguments.check_has("Coordinator.join", f"one of {threads!r}", thread, "a thread", "is_alive")
        with self._changed:
            if self._alive(given):
                self._watch(given)
                clock.wait_for(self._changed, lambda: self._stop_requested or not self._alive(given), None)
                clock.wait_for(self._changed, lambda: not self._alive(given), stop_grace_period_secs)
            stragglers = " ".join(thread.name for thread in self._alive(given))
            self._joined = True
            self._registered.clear()
            self._raise(self._error)
        if stragglers:
            message = f"Coordinator stopped with threads still running: {stragglers}"
            if not ignore_live_threads:
                raise RuntimeError(message)
            _logger.info(message)

    def raise_requested_exception(self) -> None:
        """Raises the exception recorded by `request_stop`, with its original traceback; does nothing without one.

        Example:
            >>> coord = Coordinator()
            >>> coord.raise_requested_exception()
            >>> coord.request_stop(ValueError("bad record 7"))
            >>> coord.raise_requested_exception()
            Traceback (most recent call last):
            ...
            ValueError: bad record 7
        """
        self._raise(self._error)

    def _to_error(self, ex: object) -> tuple[BaseException, TracebackType | None] | None:
        error, trace = (ex[1], ex[2]) if isinstance(ex, tuple) and len(ex) == 3 else (ex, None)
        if (error is None and ex is None) or isinstance(error, self._clean_stop_exception_types):
            return None
        if not isinstance(error, BaseException):
            message = (
                "Coordinator.request_stop requires an exception, the tuple of sys.exc_info() in an `except` block, or "
                f"None, got {ex!r}."
            )
            return ValueError(message), None
        return error, trace or error.__traceback__

    @staticmethod
    def _raise(error: tuple[BaseException, TracebackType | None] | None) -> None:
        if error is not None:
            # Each `raise` appends to the exception's traceback, so start from the recorded one.
            raise error[0].with_traceback(error[1])

    def _alive(self, given: list[threading.Thread]) -> list[threading.Thread]:
        return [thread for thread in dict.fromkeys([*given, *self._registered]) if thread.is_alive()]

    def _watch(self, given: list[threading.Thread]) -> None:
        # Only `Thread.join` shows that a thread has ended. This thread joins it and notifies, so that `join` can wait
        # for the end, a stop request and the clock at once. It outlives `join` only if its thread does not stop.
        def watch() -> None:
            while alive := self._alive(given):
                alive[0].join()
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=watch, name="hookline-coordinator-watch", daemon=True).start()


class LooperThread(threading.Thread):
    """A daemon thread, registered with its coordinator, that calls `run_loop` repeatedly until a stop is requested.

    `run_loop` calls the target; a subclass may override it instead, and `start_loop` and `stop_loop`, which run once
    before and after. An exception in any of them is reported to the coordinator and ends the thread; then `stop_loop`
    is not called.

    Args:
        coord: The coordinator that stops the thread and receives its exceptions.
        timer_interval_secs: Seconds from the start of one call to the start of the next. The first call comes at once,
            and calls delayed by a slow one follow without a pause. None means back to back.
        target: The function that `run_loop` calls.
        args: Positional arguments of the target.
        kwargs: Keyword arguments of the target.

    Raises:
        ValueError: `coord` is not a `Coordinator`, or there are arguments without a target.

    Example:
        >>> coord = Coordinator()
        >>> records, read = iter(["a", "b", None]), []
        >>> def read_one():
        ...     record = next(records)
        ...     read.append(record) if record else coord.request_stop()
        >>> thread = LooperThread.loop(coord, timer_interval_secs=None, target=read_one)
        >>> coord.join()
        >>> read
        ['a', 'b']

    References:
        `tf.train.LooperThread`.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., object] | None = None,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"LooperThread requires a Coordinator as coord, got {coord!r}.")
        if timer_interval_secs is not None:
            arguments.check_number("LooperThread", "timer_interval_secs", timer_interval_secs)
        arguments.check_callable("LooperThread", "target", target, optional=True)
        if target is None and (args or kwargs):
            raise ValueError(
                f"LooperThread requires a target for its arguments, got args={args}, kwargs={kwargs} alone."
            )
        arguments.check_mapping("LooperThread", "kwargs", kwargs, optional=True)
        given = arguments.check_list("LooperThread", "args", args, optional=True)
        super().__init__(daemon=True)
        self._coord = coord
        self._interval_secs = timer_interval_secs
        self._mesh_context = (
            placement.current_mesh_context()
        )  # The target may compute, in the mesh of the creating thread.
        self._call = None if target is None else (target, tuple(given), dict(kwargs or {}))
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Creates, starts and returns a thread; the arguments are those of the class."""
        thread = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        thread.start()
        return thread

    def run(self) -> None:
        """Runs in the thread until the coordinator stops; call `start`, not this."""
        with self._coord.stop_on_exception(), placement.enter_mesh(self._mesh_context):
            self.start_loop()
            boundary_secs = clock.monotonic()
            while not self._stop_before(boundary_secs):
                boundary_secs += self._interval_secs or 0
                self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once in the thread, before the first `run_loop`; does nothing unless overridden."""

    def run_loop(self) -> None:
        """Called at each interval of the timer; calls the target unless overridden."""
        if self._call is not None:
            target, args, kwargs = self._call
            target(*args, **kwargs)

    def stop_loop(self) -> None:
        """Called once in the thread, after a stop was requested; does nothing unless overridden."""

    def _stop_before(self, boundary_secs: float) -> bool:
        if self._interval_secs is None:
            return self._coord.should_stop()
        return self._coord.wait_for_stop(boundary_secs - clock.monotonic())
