"""WatchdogHook: logs where a training hangs."""

from __future__ import annotations

import sys
import threading
import traceback

from hookline import arguments, clock, log
from hookline.checkpoint.saving.save_operation import saves_under_way
from hookline.coordination import Coordinator, LooperThread
from hookline.hooks.base import SessionRunHook
from hookline.session import Session

_logger = log.get_logger(__name__)

_POLLS_PER_TIMEOUT = 4


class WatchdogHook(SessionRunHook):
    """Logs the stacks of all threads and the state of the session if no step has run for a while.

    A stall is logged once; the next step ends it. A thread polls the number of runs that wrote variables, so runs do
    not become slower. It detects a stall at most a quarter of `timeout_secs` late, and does not wait for the device.
    The time begins when the session is created: choose it longer than the compilation of the first step, and longer
    than an evaluation between steps. The thread ends with the session, or when a stop is requested.

    Callback: `after_create_session`.

    Args:
        timeout_secs: Seconds without a step that count as a stall.
        stop: Whether a stall also requests a stop of the session. This ends a loop that checks `should_stop()`; it does
            not interrupt a call that hangs.

    Raises:
        ValueError: `timeout_secs` is not greater than 0.

    Example:
        >>> hook = WatchdogHook(timeout_secs=600)

    References:
        None in `tf.train`. `faulthandler.dump_traceback_later` has no notion of steps.
    """

    def __init__(self, timeout_secs: float, *, stop: bool = False) -> None:
        self._timeout_secs = arguments.check_number("WatchdogHook", "timeout_secs", timeout_secs)
        if timeout_secs <= 0:
            raise ValueError(f"WatchdogHook requires timeout_secs > 0, got {timeout_secs}.")
        self._stop = stop

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Starts a thread for this raw session."""
        _WatchdogThread(session, coord, self._timeout_secs, self._stop).start()


class _WatchdogThread(LooperThread):
    """Watches one session."""

    def __init__(self, session: Session, coord: Coordinator, timeout_secs: float, stop: bool) -> None:
        super().__init__(coord, timeout_secs / _POLLS_PER_TIMEOUT)
        self.name = "hookline-watchdog"
        self._session, self._stops, self._timeout_secs = session, stop, timeout_secs
        self._seen_writes = session.backend.write_count
        self._since_secs = clock.monotonic()
        self._has_reported = False

    def run_loop(self) -> None:
        seen, now = self._session.backend.write_count, clock.monotonic()
        if seen != self._seen_writes:
            if self._has_reported:
                _logger.warning("WatchdogHook: the stall is over; a step ran after %.0f s.", now - self._since_secs)
            self._seen_writes, self._since_secs, self._has_reported = seen, now, False
        elif not self._has_reported and now - self._since_secs >= self._timeout_secs:
            self._has_reported = True
            self._report(now - self._since_secs)

    def _report(self, secs: float) -> None:
        _logger.error(
            "WatchdogHook: no step for %.0f s. %s\n%s",
            secs,
            _state(self._session, self._coord),
            stacks_of_all_threads(),
        )
        if self._stops:
            _logger.error("WatchdogHook requests a stop of the session.")
            self._coord.request_stop()


def _state(session: Session, coord: Coordinator) -> str:
    """Returns the known state of a session without waiting, because a thread that hangs may hold its lock."""
    try:
        step = session.backend.known_step
    except RuntimeError:  # The session is being closed.
        step = None
    facts = [
        f"Global step: {'not known on the host' if step is None else step}",
        f"runs that wrote variables: {session.backend.write_count}",
        f"the model was {session.origin or 'initialised by the program'}",
        f"stop requested: {'yes' if coord.should_stop() else 'no'}",
        f"checkpoints being written: {', '.join(saves_under_way()) or 'none'}",
    ]
    return "; ".join(facts) + "."


def stacks_of_all_threads() -> str:
    """Returns the stacks of all Python threads as text, the latest call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "not made by threading")
        parts.append(f"Thread {name} ({ident}):\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
