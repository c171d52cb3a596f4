"""TimeLimitHook: stops a training before a time limit, such as that of a cluster's job."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from hookline import arguments, clock, log
from hookline.coordination import Coordinator
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.lookup import session_savers
from hookline.hooks.triggers import OffSteps
from hookline.session import Session, SessionConfig

_logger = log.get_logger(__name__)

_UNMEASURED_SHARE = 0.05


class TimeLimitHook(SessionRunHook):
    """Stops the training early enough that its last step is saved within a number of seconds.

    The time counts from `begin`, so from the start of the monitored session or of `Loop.run`, with restoring and
    compiling, but without what the process did before; a recovery does not reset it. The hook keeps back twice the time
    of the longest save so far (`Saver.last_save_secs`; 5% of the limit before the first one is measured) and the mean
    time of a run for each run that may be under way. Other work at the end, such as a last evaluation, is not
    included: give a smaller limit. The stop is not final: a restart continues the training, with a new limit. In SPMD
    processes the chief's clock decides, and all stop at the same step.

    Callbacks: `begin`, `after_create_session`, `on_trigger`; nothing after an exception.

    Args:
        secs: The limit in seconds.

    Attributes:
        secs: As given.

    Raises:
        TypeError: `secs` is not a number.
        ValueError: `secs` is not greater than 0.

    Example:
        >>> hook = TimeLimitHook(secs=4 * 3600)

    References:
        None in `tf.train`. `max_time` of Lightning's `Trainer` leaves no time for the save.
    """

    def __init__(self, secs: float) -> None:
        self.secs = arguments.check_number("TimeLimitHook", "secs", secs)
        if secs <= 0:
            raise ValueError(f"TimeLimitHook requires secs > 0, got {secs}.")

    def begin(self) -> None:
        """Starts the time."""
        self.trigger = _BeforeLimit(self.secs)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Finds the savers and the count of runs of this raw session."""
        self.trigger.watch(session)

    def on_trigger(self, firing: Firing) -> None:
        """Requests the stop."""
        _logger.info(
            "TimeLimitHook stops the training after %.0f of %g s, so that it can be saved in time. Start it again to "
            "continue.",
            self.trigger.spent_secs(),
            self.secs,
        )
        firing.context.request_stop()


class _BeforeLimit(OffSteps):
    """Fires once, when only the time for the last runs and a save is left."""

    def __init__(self, secs: float) -> None:
        self._secs, self._begin_secs = secs, clock.monotonic()
        self._longest_save_secs = 0.0
        self._savers: Iterable[Any] = ()
        self._session: Callable[[], Session | None] = lambda: None
        self._first_run = (0.0, 0, 0.0)

    def watch(self, session: Session) -> None:
        """Measures the runs and saves of this raw session."""
        self._savers, self._session = session_savers(session), weakref.ref(session)
        self._first_run = clock.monotonic(), session.backend.write_count, _once_secs(session)

    def spent_secs(self) -> float:
        """Returns the seconds since the start."""
        return clock.monotonic() - self._begin_secs

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the time is over; in SPMD processes, whether they have agreed on it."""
        return self._fired_step is None and (self._left_secs() <= 0 if self.agreed is None else self.agreed)

    def secs_until_trigger(self) -> float:
        """Returns half of the seconds left: then it is asked again, because saves and runs may take longer by then."""
        return math.inf if self._fired_step is not None else self._left_secs() / 2

    def _left_secs(self) -> float:
        """Returns the seconds until the stop."""
        reserve = 0.0
        if self._savers:
            measured = (getattr(saver, "last_save_secs", 0.0) for saver in self._savers)
            self._longest_save_secs = max(self._longest_save_secs, *measured)
            reserve = 2 * self._longest_save_secs if self._longest_save_secs else _UNMEASURED_SHARE * self._secs
        if (session := self._session()) is not None:
            since, before, once_before = self._first_run
            runs = session.backend.write_count - before
            if runs > 0:
                under_way = min(runs, SessionConfig.max_runs_ahead)
                runs_secs = clock.monotonic() - since - (_once_secs(session) - once_before)
                reserve += (under_way + 1) * max(runs_secs, 0.0) / runs
        return self._secs - self.spent_secs() - reserve

    def __repr__(self) -> str:
        return f"time_limit({self._secs:g})"


def _once_secs(session: Session) -> float:
    """Returns the seconds of what the next runs do not need, as far as a session counts them."""
    secs = session.activity.secs()
    return sum(secs.get(what, 0.0) for what in ("compilation", "save", "evaluation"))
