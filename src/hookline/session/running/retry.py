"""Records the remote updates of a run, so that a retry in a new session does not apply them twice."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class SentUpdates:
    """The remote updates that a run sends.

    Attributes:
        tracking: The data with which the store can find out later whether the updates were applied; `None` before they
            are sent.
        applied: Whether the updates were applied; `None` while this is not known.
        step: The global step after the updates, if they were applied.
        batches_used: Whether the batches of the run have been marked as used.
    """

    def __init__(self, names: tuple[str, ...], counts: bool) -> None:
        self.names, self.writes_step = names, counts
        self.tracking: Any = None
        self.applied: bool | None = None
        self.step: int | None = None
        self.batches_used = False


class Retry:
    """The remote updates of all attempts at one run, or at one call of a step function.

    An update of a later attempt is the same as one of an earlier attempt if it has the same names; updates with the
    same names are matched in order.

    Attributes:
        repeats: Whether an attempt has repeated updates that an earlier attempt had sent.

    Example:
        >>> retry = Retry()
        >>> first = SentUpdates(("train",), counts=True)
        >>> retry.send(first)  # the servers apply it; then a hook fails, and the session is lost
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
        """The last updates of this attempt: sent by it, or found to be sent by an earlier attempt."""
        return self._now[-1] if self._now else None

    def begin_again(self) -> None:
        """Begins another attempt."""
        self._before = self._now + self._before
        self._now = []

    def send(self, sent: SentUpdates, instead_of: SentUpdates | None = None) -> None:
        """Records updates that are sent now, in place of earlier ones that were not applied."""
        if instead_of is not None:
            self._now.remove(instead_of)
        self._now.append(sent)

    def find_sent(self, names: tuple[str, ...]) -> SentUpdates | None:
        """Returns updates with these names that an earlier attempt sent, each only once in an attempt; else None."""
        for sent in self._before:
            if sent.names == names:
                self._before.remove(sent)
                self._now.append(sent)
                self.repeats = True
                return sent
        return None


RETRY: ContextVar[Retry | None] = ContextVar("retry", default=None)
"""The attempts at the current run; None if its caller does not retry it after the loss of a session."""
