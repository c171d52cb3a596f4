"""WatchdogHook: says where a training hangs."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from hookline import arguments, clock
from hookline.checkpoint.pending import saves_under_way
from hookline.coordination import LooperThread
from hookline.hooks.base import SessionRunHook

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

_LOOKS_PER_STALL = 4


class WatchdogHook(SessionRunHook):
    """Writes the stacks of all threads and the state of the session to the log when no step has come for a while.

    Once a stall: the next step ends it. A thread looks at the session's count of runs that wrote variables, so a run
    costs nothing more. It sees a stall at most a quarter of the time too late, and does not wait for the device. Time
    counts from when the session was created, so it should be longer than the first step takes to
    compile, and longer than an evaluation between steps. Runs `after_create_session`; the thread ends with the
    session, or with a stop that somebody requested from its coordinator.

    Args:
        timeout_secs: How many seconds without a step are a stall.
        stop: Whether to ask the session to stop as well. That ends a loop that asks `should_stop()` when it comes back;
            a call that hangs for ever is not interrupted.

    Raises:
        ValueError: `timeout_secs` is not above 0.

    Example:
        >>> hook = WatchdogHook(timeout_secs=600)

    References:
        None in `tf.train`. `faulthandler.dump_traceback_later` knows nothing of steps.
    """

    def __init__(self, timeout_secs: float, *, stop: bool = False) -> None:
        self._timeout_secs = arguments.number("WatchdogHook", "timeout_secs", timeout_secs)
        if timeout_secs <= 0:
            raise ValueError(f"WatchdogHook requires timeout_secs > 0, got {timeout_secs}.")
        self._stop = stop

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Starts the thread; each session that a recovery makes has one of its own."""
        _Watch(session, coord, self._timeout_secs, self._stop).start()


class _Watch(LooperThread):
    """Looks after one session."""

    def __init__(self, session: Session, coord: Coordinator, timeout_secs: float, stop: bool) -> None:
        super().__init__(coord, timeout_secs / _LOOKS_PER_STALL)
        self.name = "hookline-watchdog"
        self._session, self._stops, self._timeout_secs = session, stop, timeout_secs
        self._seen = session.writes
        self._since_secs = clock.monotonic()
        self._told = False

    def run_loop(self) -> None:
        seen, now = self._session.writes, clock.monotonic()
        if seen != self._seen:
            if self._told:
                _logger.warning("The stall is over: a step has come after %.0f s.", now - self._since_secs)
            self._seen, self._since_secs, self._told = seen, now, False
        elif not self._told and now - self._since_secs >= self._timeout_secs:
            self._told = True
            self._tell(now - self._since_secs)

    def _tell(self, secs: float) -> None:
        _logger.error(
            "WatchdogHook: no step for %.0f s. %s\n%s",
            secs,
            _state(self._session, self._coord),
            stacks_of_all_threads(),
        )
        if self._stops:
            _logger.error("WatchdogHook asks the session to stop.")
            self._coord.request_stop()


def _state(session: Session, coord: Coordinator) -> str:
    """Says what is known of a session without waiting for anything: whoever hangs may hold its lock."""
    try:
        step = session.known_global_step
    except RuntimeError:  # it is being closed
        step = None
    facts = [
        f"Global step: {'not known on the host' if step is None else step}",
        f"runs that wrote variables: {session.writes}",
        f"the model was {session.origin or 'made by hand'}",
        f"stop requested: {'yes' if coord.should_stop() else 'no'}",
        f"checkpoints being written: {', '.join(saves_under_way()) or 'none'}",
    ]
    return "; ".join(facts) + "."


def stacks_of_all_threads() -> str:
    """Returns where each thread of Python is, the latest call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "not made by threading")
        parts.append(f"Thread {name} ({ident}):\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
