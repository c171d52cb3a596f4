"""A thread that repeats one task until its coordinator stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline import arguments, clock
from hookline.coordination.coordinator import Coordinator
from hookline.graph import placement


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
            arguments.number("LooperThread", "timer_interval_secs", timer_interval_secs)
        arguments.function("LooperThread", "target", target, optional=True)
        if target is None and (args or kwargs):
            raise ValueError(
                f"LooperThread requires a target for its arguments, got args={args}, kwargs={kwargs} alone."
            )
        arguments.mapping("LooperThread", "kwargs", kwargs, optional=True)
        given = arguments.several("LooperThread", "args", args, optional=True)
        super().__init__(daemon=True)
        self._coord = coord
        self._interval_secs = timer_interval_secs
        self._home = placement.current()  # The target may compute, in the mesh of the creating thread.
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
        with self._coord.stop_on_exception(), placement.inside(self._home):
            self.start_loop()
            boundary_secs = clock.monotonic()
            while not self._stop_before(boundary_secs):
                boundary_secs += self._interval_secs or 0
                self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once in the thread, before the first `run_loop`; does nothing unless overridden."""

    def run_loop(self) -> None:
        """Called at each boundary of the timer; calls the target unless overridden."""
        if self._call is not None:
            target, args, kwargs = self._call
            target(*args, **kwargs)

    def stop_loop(self) -> None:
        """Called once in the thread, after a stop was requested; does nothing unless overridden."""

    def _stop_before(self, boundary_secs: float) -> bool:
        if self._interval_secs is None:
            return self._coord.should_stop()
        return self._coord.wait_for_stop(boundary_secs - clock.monotonic())
