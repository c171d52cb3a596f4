"""What a run has done to variables elsewhere, so that trying it again in a new session does not do it twice."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class Sent:
    """Updates that a run has sent.

    Args:
        names: Of the updates, in order.
        where: What the store needs to ask later what became of them.

    Attributes:
        applied: Whether they were applied; `None` while that is not known.
    """

    def __init__(self, names: tuple[str, ...], where: Any) -> None:
        self.names, self.where = names, where
        self.applied: bool | None = None


class Retry:
    """All attempts at one run, or at one call of a step function.

    Example:
        >>> retry = Retry()
        >>> first = retry.send(("train",), where=1)
        >>> first.applied = True  # and then a hook fails: the session is lost, the update is not
        >>> retry.begin_again()
        >>> retry.sent_before(("train",)) is first, retry.sent_before(("train",))
        (True, None)
    """

    def __init__(self) -> None:
        self._before: list[Sent] = []
        self._now: list[Sent] = []

    def begin_again(self) -> None:
        """Takes note that another attempt begins."""
        self._before += self._now
        self._now = []

    def send(self, names: tuple[str, ...], where: Any) -> Sent:
        """Takes note of updates that are sent now."""
        sent = Sent(names, where)
        self._now.append(sent)
        return sent

    def sent_before(self, names: tuple[str, ...]) -> Sent | None:
        """Returns what an earlier attempt sent of updates of these names, each once in an attempt."""
        for sent in self._before:
            if sent.names == names:
                self._before.remove(sent)
                self._now.append(sent)
                return sent
        return None

    def drop(self, sent: Sent) -> None:
        """Forgets updates that were certainly not applied."""
        self._now.remove(sent)


RETRY: ContextVar[Retry | None] = ContextVar("retry", default=None)
"""The run that is under way, where somebody tries it again if its session is lost."""
