"""CoordinatedSession: stops a hooked session together with the threads of its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from hookline import log, preemption
from hookline.coordination import Coordinator
from hookline.errors import PREEMPTION_ERRORS
from hookline.monitored.hooked import HookedSession
from hookline.session import RunMetadata, RunOptions

logger = log.of(__name__)

T = TypeVar("T")


class CoordinatedSession:
    """A hooked session that ends together with the threads of its coordinator.

    Args:
        session: The hooked session.
        coord: The coordinator of the threads that serve this session.
        stop_grace_period_secs: The longest wait of `close` for the threads to stop.

    References:
        The coordinated session inside `tf.train.MonitoredSession`.
    """

    def __init__(self, session: HookedSession, coord: Coordinator, stop_grace_period_secs: float = 120) -> None:
        self.hooked = session
        self.coord = coord
        self._stop_grace_period_secs = stop_grace_period_secs
        self._reported: BaseException | None = None
        self._mapped: BaseException | None = None

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs with the hooks.

        Raises:
            BaseException: The error of the run; or, if a thread had already reported a preemption error, that error as
                the root cause.
        """
        try:
            return self.hooked.run(fetches, feed_dict, options, run_metadata)
        except Exception as exc:
            self._raise_root_cause(exc)
            raise

    def raise_as_run(self, error: BaseException) -> NoReturn:
        """Raises the error of a run on the fast path, as `run` would have raised it."""
        try:
            self.hooked.raise_as_run(error)
        except Exception as exc:
            self._raise_root_cause(exc)
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function that uses the raw session; its errors have the same root cause as in `run`."""
        try:
            return function()
        except Exception as exc:
            mapped = self.hooked.raw.lowlevel.map_error(exc)
            self._raise_root_cause(mapped)
            if mapped is exc:
                raise
            raise mapped from exc

    def should_stop(self) -> bool:
        """Returns whether a hook or the coordinator has requested a stop; raises an error reported by a thread."""
        if not self.coord.should_stop():
            return self.hooked.should_stop()
        error = self.reported_error()
        if error is not None:
            raise error
        return True

    def stop_requested_cleanly(self) -> bool:
        """Returns whether the coordinator was stopped without an error."""
        return self.coord.should_stop() and self.reported_error() is None

    def reported_error(self) -> BaseException | None:
        """Returns the error that a thread has reported, if any, mapped like the errors of a run."""
        try:
            self.coord.raise_requested_exception()
        except BaseException as exc:
            if exc is not self._reported:
                self._reported, self._mapped = exc, self.hooked.raw.lowlevel.map_error(exc)
            return self._mapped
        return None

    def close(self) -> None:
        """Stops the threads, waits for them at most the grace period, and closes the session.

        Raises:
            BaseException: The error that a thread has reported. If closing itself meets a preemption error, this is
                only logged, because nothing is left to lose.
        """
        self.coord.request_stop()
        # A process that was asked to end keeps half of its time for the work after the threads have stopped.
        grace_secs = min(self._stop_grace_period_secs, preemption.left_secs() / 2)
        try:
            self.coord.join(stop_grace_period_secs=grace_secs, ignore_live_threads=True)
        except Exception as exc:
            error = self.reported_error()
            if error is None or error is exc:
                raise
            raise error from exc
        finally:
            self._close_raw()

    def _close_raw(self) -> None:
        raw = self.hooked.raw
        self.hooked.end_fast_path()
        try:
            raw.close()
        except Exception as exc:
            mapped = raw.lowlevel.map_error(exc)
            if not isinstance(mapped, PREEMPTION_ERRORS):
                raise
            logger.warning("Closing a lost session failed, which changes nothing: %s", mapped)

    def _raise_root_cause(self, exc: BaseException) -> None:
        if isinstance(exc, PREEMPTION_ERRORS):
            return
        root_cause = self.reported_error()
        if isinstance(root_cause, PREEMPTION_ERRORS):
            raise root_cause from exc
