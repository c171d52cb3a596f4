"""RetryPolicy: the number of attempts of a save, and the waits between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hookline import arguments, clock, log
from hookline.checkpoint import failures
from hookline.coordination import peers

_logger = log.of(__name__)


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """The retries of a save that fails for a temporary reason: a full disk, an unavailable file system.

    Attributes:
        max_attempts: The number of attempts in all; with 1 there is no retry.
        initial_backoff_secs: The wait before the second attempt; it doubles before each later one.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> [RetryPolicy(max_attempts=4).backoff_secs(failures) for failures in (1, 2, 3)]
        [1.0, 2.0, 4.0]
    """

    max_attempts: int = 4
    initial_backoff_secs: float = 1.0

    def __post_init__(self) -> None:
        arguments.whole("RetryPolicy", "max_attempts", self.max_attempts, at_least=1)
        arguments.number("RetryPolicy", "initial_backoff_secs", self.initial_backoff_secs, at_least=0)

    def attempt(self, function: Callable[[], None], path: str) -> None:
        """Calls a function that writes a file, and calls it again while it fails for a temporary reason.

        Raises:
            OpError: The last failure; `path` is the file to be written.
        """
        failures_so_far = 0
        while True:
            try:
                return function()
            except Exception as error:
                failures_so_far += 1
                mapped = failures.not_written(error, path)
                if failures_so_far >= self.max_attempts or not failures.may_pass(error):
                    if mapped is error:
                        raise
                    raise mapped from failures.without_tracebacks(error)
                self.wait(mapped, failures_so_far)

    def wait(self, failure: BaseException, failures_so_far: int) -> None:
        """Logs the failure, and waits until the next attempt is due."""
        secs = self.backoff_secs(failures_so_far)
        if peers.speaks():
            text = "%s Attempt %d of %d follows in %g s."
            _logger.warning(text, failure, failures_so_far + 1, self.max_attempts, secs)
        clock.sleep(secs)

    def backoff_secs(self, failures: int) -> float:
        """Returns the wait after this many failures in a row, in seconds."""
        return self.initial_backoff_secs * 2.0 ** (failures - 1)
