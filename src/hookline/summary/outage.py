"""Outage: a period in which a writer cannot write, and its log messages."""

from __future__ import annotations

from hookline import clock, log

_RETRY_SECS = 10.0

_logger = log.of(__name__)


class Outage:
    """Counts what a writer loses while it cannot write; a WARNING marks the beginning, INFO the end.

    Args:
        things: What is lost, for the messages.
        meanwhile: What becomes of more of it, and what is tried, before "every 10 s or so".

    Attributes:
        under_way: Whether the last attempt has failed.
        lost: How many things this outage has cost so far.
        total: How many those before it did.
    """

    def __init__(
        self, things: str = "Events", meanwhile: str = ", perhaps more until a new file can be made, which is tried"
    ) -> None:
        self._things, self._meanwhile = things, meanwhile
        self.under_way = False
        self.lost = self.total = 0
        self._began_at = 0.0
        self._tried_at = 0.0

    @property
    def is_time_to_try(self) -> bool:
        """Whether the last attempt was long enough ago."""
        return clock.monotonic() >= self._tried_at + _RETRY_SECS

    def begin(self, failure: BaseException, lost: int) -> None:
        """Notes a failed attempt to write, the first or a later one, and the number of events lost with it."""
        self._tried_at = clock.monotonic()
        self.lost += lost
        if self.under_way:
            return
        self.under_way = True
        self._began_at = self._tried_at
        _logger.warning(
            "%s The program goes on. %s lost so far: %d%s every %g s or so.",
            failure,
            self._things,
            lost,
            self._meanwhile,
            _RETRY_SECS,
        )

    def end(self, how: str) -> None:
        """Logs how many events were lost in all, and resets the count."""
        secs = clock.monotonic() - self._began_at
        _logger.info("%s %s lost: %d, in %.0f s.", how, self._things, self.lost, secs)
        self.under_way = False
        self.total += self.lost
        self.lost = 0
