"""Quiet: the runs on which no hook rides, made without asking anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookline import clock
from hookline.session import Session, Watched
from hookline.session.again import NOT_RUN, Again
from hookline.summary.writer_cache import SCOPE, WriterScope

_NOTHING = object()


class Quiet:
    """The runs on which no hook rides: they go straight to the raw session. A monitored session has one.

    A hooked session that knows when the next hook is due lets so many runs pass. They must ask for the same, and
    nothing else may write variables meanwhile: then the global step is where it was foreseen.

    Args:
        scope: The owner of the writers that host operations take from `FileWriterCache`.

    Attributes:
        fetches: What these runs ask for.
        failed: Of a run that failed, the error and the session's count of writes before it. The hooked session raises
            the error as if it had made that run.
    """

    __slots__ = (
        "_again",
        "_alarms",
        "_left",
        "_made",
        "_scope",
        "_session",
        "_until",
        "_watched",
        "_writes",
        "_writes_each",
        "failed",
        "fetches",
    )

    def __init__(self, scope: WriterScope | None = None) -> None:
        self._scope = scope
        self.fetches: Any = _NOTHING
        self.failed: tuple[BaseException, int] | None = None
        self._session: Session | None = None
        self._watched: Watched | None = None
        self._again: Again | None = None
        self._left = self._until = 0.0
        self._made = self._writes = self._writes_each = self._alarms = 0

    def begin(
        self,
        session: Session,
        fetches: Any,
        watched: Watched | None,
        runs: float,
        until: float,
        *,
        feeds: bool,
        writes: bool,
    ) -> None:
        """Lets runs pass.

        Args:
            session: Who makes them.
            fetches: What they ask for.
            watched: What each of them carries for hooks.
            runs: How many may pass.
            until: The reading of the clock at which the next one must not.
            feeds: Whether they feed anything.
            writes: Whether they write variables.
        """
        self._session, self._watched = session, watched
        self._again = None if feeds else session.again(fetches, watched)
        self._left, self._until = runs, until
        self._made, self._writes, self._writes_each = 0, session.writes, int(writes)
        self._alarms, self.fetches = session.alarms, fetches

    def end(self) -> int:
        """Lets no more runs pass; returns how many have."""
        self.fetches = _NOTHING
        made, self._made = self._made, 0
        self._session = self._again = None
        return made

    def run(self, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Makes a run.

        Args:
            feed_dict: As of `Session.run`.

        Returns:
            The results of the caller; or `NOT_RUN`, and it has changed nothing or `failed`.
        """
        session = self._session
        if session is None or self._left <= 0 or session.alarms != self._alarms:
            return NOT_RUN
        if self._until < math.inf and clock.monotonic() >= self._until:
            return NOT_RUN
        try:
            if self._again is not None and feed_dict is None:
                result = self._again.run()
                if result is NOT_RUN:
                    return result
            elif session.writes != self._writes:
                return NOT_RUN
            else:
                result = self._run(session, feed_dict)
        except BaseException as error:
            self.failed = error, self._writes
            return NOT_RUN
        self._left -= 1
        self._made += 1
        self._writes += self._writes_each
        return result

    def _run(self, session: Session, feed_dict: Mapping[Any, Any] | None) -> Any:
        outer = SCOPE.set(self._scope)
        try:
            if self._watched is None:
                return session.run(self.fetches, feed_dict)
            return session.run_watched(self.fetches, self._watched, feed_dict)[0]
        finally:
            SCOPE.reset(outer)
