"""RecoveryPolicy: the limits and waits of creating a lost session again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hookline import arguments


@dataclass(frozen=True)
class RecoveryPolicy:
    """The limits and waits with which a recoverable session creates its session again.

    Attempts are counted until there is progress: until the global step passes the highest one reached before the
    failure. So a step that always fails ends the job instead of repeating for ever.

    Args:
        max_attempts: The number of attempts in a row, without progress between them; at least 1.
        initial_backoff_secs: The wait before the first attempt.
        multiplier: The factor by which the wait grows from one attempt to the next.
        max_backoff_secs: The longest wait.
        jitter: The fraction by which a wait may vary either way, so that workers do not all come back at once.
        seed: The seed of the variation.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    Example:
        >>> policy = RecoveryPolicy(max_attempts=3, initial_backoff_secs=1, multiplier=4, jitter=0)
        >>> [policy.backoff_secs(attempt, policy.generator()) for attempt in (1, 2, 3)]
        [1.0, 4.0, 16.0]

    References:
        No counterpart in `tf.train`, which creates sessions again without limits and waits.
    """

    max_attempts: int = 12
    initial_backoff_secs: float = 0.1
    multiplier: float = 2.0
    max_backoff_secs: float = 60.0
    jitter: float = 0.2
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        arguments.whole("RecoveryPolicy", "max_attempts", self.max_attempts)
        for name in ("initial_backoff_secs", "multiplier", "max_backoff_secs", "jitter"):
            arguments.number("RecoveryPolicy", name, getattr(self, name))
        if self.seed is not None:
            arguments.whole("RecoveryPolicy", "seed", self.seed)
        if self.max_attempts < 1:
            raise ValueError(
                f"RecoveryPolicy requires max_attempts >= 1, got {self.max_attempts}; recovery=None turns recovery off."
            )
        if self.initial_backoff_secs < 0 or self.max_backoff_secs < 0:
            raise ValueError(
                "RecoveryPolicy requires waits >= 0, got "
                f"initial_backoff_secs={self.initial_backoff_secs} and max_backoff_secs={self.max_backoff_secs}."
            )
        if self.multiplier < 1:
            raise ValueError(f"RecoveryPolicy requires multiplier >= 1, got {self.multiplier}: waits do not shrink.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"RecoveryPolicy requires 0 <= jitter <= 1, got {self.jitter}.")

    def generator(self) -> random.Random:
        """Returns a new source of the variation, which depends only on the seed."""
        return random.Random(self.seed)

    def backoff_secs(self, attempt: int, generator: random.Random) -> float:
        """Returns the wait before an attempt, in seconds.

        Args:
            attempt: 1 for the first.
            generator: The source of the variation.
        """
        # The exponent is bounded because 2.0 ** 1024 is an OverflowError; the wait has long reached its maximum by
        # then.
        grown = self.initial_backoff_secs * self.multiplier ** min(attempt - 1, 64)
        return min(grown, self.max_backoff_secs) * (1 + self.jitter * generator.uniform(-1, 1))


DEFAULT_RECOVERY = RecoveryPolicy()
"""The default policy of a monitored session."""
