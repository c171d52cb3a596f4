"""RetryPolicy: how often a save that failed is tried again."""

from __future__ import annotations

import dataclasses

from hookline import arguments


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How often a save is tried that fails for a reason which may pass: a full disk, a file system that is away.

    Attributes:
        max_attempts: How often in all; 1 never tries again.
        initial_backoff_secs: How long to wait before the second attempt; twice as long before each one after it.

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

    def backoff_secs(self, failures: int) -> float:
        """Returns how long to wait after so many failures in a row."""
        return self.initial_backoff_secs * 2.0 ** (failures - 1)
