"""The remote updates of a run, recorded so that a retry in a new session does not apply them twice."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class SentUpdates:
    """Updates that a run sends.

    Attributes:
        tracking: The data with which the store can later find out whether the updates were applied; `None` before they
            are sent.
        applied: Whether they were applied; `None` while that is not known.
        step: The global step after them, if they were applied.
        batches_used: Whether the iterator batches that they were computed from have been counted as used.
    """

    def __init__(self, names: tuple[str, ...], counts: bool) -> None:
        self.names, self.writes_step = names, counts
        self.tracking: Any = None
        self.applied: bool | None = None
        self.step: int | None = None
        self.batches_used = False


class Retry:
    """All attempts at one run, or at one call of a step function.

    A later attempt's updates are matched with those of an earlier one by their names, in order.

    Attributes:
        repeats: Whether an attempt repeated updates that an earlier one had sent.

    Example:
        >>> retry = Retry()
        >>> first = SentUpdates(("train",), counts=True)
        >>> retry.send(first)  # it is applied, and then a hook fails: the session is lost, the update is not
        >>> retry.begin_again()
        >>> retry.find_sent(("train",)) is first, retry.find_sent(("train",))
        (True, None)
    """

    def __init__(self) -> None:
        self._before: list[SentUpdates] = []
        self._now: list[SentUpdates] = []
        self.repeats = False

    @property
    def latest(self) -> SentUpdates | None:
        """The updates that this attempt sent last, or found to be sent already."""
        return self._now[-1] if self._now else None

    def begin_again(self) -> None:
        """Records that another attempt begins."""
        self._before = self._now + self._before
        self._now = []

    def send(self, sent: SentUpdates, instead_of: SentUpdates | None = None) -> None:
        """Records updates that are sent now, in place of earlier ones that were not applied."""
        if instead_of is not None:
            self._now.remove(instead_of)
        self._now.append(sent)

    def find_sent(self, names: tuple[str, ...]) -> SentUpdates | None:
        """Returns the updates of these names that an earlier attempt sent; each only once in an attempt."""
        for sent in self._before:
            if sent.names == names:
                self._before.remove(sent)
                self._now.append(sent)
                self.repeats = True
                return sent
        return None


RETRY: ContextVar[Retry | None] = ContextVar("retry", default=None)
"""The attempts at the current run, if its caller retries it when its session is lost."""
