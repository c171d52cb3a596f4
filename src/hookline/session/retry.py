"""What a run has done to variables elsewhere, so that trying it again in a new session does not do it twice."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class Sent:
    """Updates that a run sends.

    Attributes:
        where: What the store needs to ask later what became of them; `None` before they are on their way.
        applied: Whether they were applied; `None` while that is not known.
        step: The global step to which they led, if they were applied.
        counted: The batches of iterators that they were computed from have been counted as used.
    """

    def __init__(self, names: tuple[str, ...], counts: bool) -> None:
        self.names, self.counts = names, counts
        self.where: Any = None
        self.applied: bool | None = None
        self.step: int | None = None
        self.counted = False


class Retry:
    """All attempts at one run, or at one call of a step function.

    A later attempt's updates are taken for those of an earlier one by their names, in the order in which they come.

    Attributes:
        repeats: An attempt has come to updates that an earlier one had sent.

    Example:
        >>> retry = Retry()
        >>> first = Sent(("train",), counts=True)
        >>> retry.send(first)  # it is applied, and then a hook fails: the session is lost, the update is not
        >>> retry.begin_again()
        >>> retry.sent_before(("train",)) is first, retry.sent_before(("train",))
        (True, None)
    """

    def __init__(self) -> None:
        self._before: list[Sent] = []
        self._now: list[Sent] = []
        self.repeats = False

    @property
    def latest(self) -> Sent | None:
        """What this attempt sent last, or took for sent."""
        return self._now[-1] if self._now else None

    def begin_again(self) -> None:
        """Takes note that another attempt begins."""
        self._before = self._now + self._before
        self._now = []

    def send(self, sent: Sent, instead_of: Sent | None = None) -> None:
        """Takes note of updates that are sent now, in place of earlier ones that were not applied."""
        if instead_of is not None:
            self._now.remove(instead_of)
        self._now.append(sent)

    def sent_before(self, names: tuple[str, ...]) -> Sent | None:
        """Returns what an earlier attempt sent of updates of these names, each once in an attempt."""
        for sent in self._before:
            if sent.names == names:
                self._before.remove(sent)
                self._now.append(sent)
                self.repeats = True
                return sent
        return None


RETRY: ContextVar[Retry | None] = ContextVar("retry", default=None)
"""The run that is under way, where somebody tries it again if its session is lost."""
