"""Together: what processes that run in step do at one place of a save or a restore, with one outcome for all."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

from hookline.checkpoint import failures
from hookline.coordination import peers
from hookline.coordination.peers import START_TIMEOUT_SECS, Peers

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_ABOUT = "checkpoints"


class Together:
    """The processes that save and restore together. A process that is alone is the case of one.

    All of them call the same methods in the same order. They meet first, and one that does not come is an error. Who
    has come stays to the end, however long a part takes.

    Args:
        found: The processes; None where this one is alone.
        about: What they do. What another thread does meanwhile has a name of its own.

    Attributes:
        is_alone: Whether there is one process.
        is_chief: Whether this one writes, and says where to.
        index: The number of this one.

    Example:
        >>> alone = Together(None)
        >>> alone.all(lambda: 3), alone.chief(lambda: "model.ckpt-1")
        ([3], 'model.ckpt-1')
        >>> alone.for_chief(lambda: 3)
        [3]
    """

    def __init__(self, found: Peers | None, about: str = _ABOUT) -> None:
        self._peers, self._about = found, about
        self.is_alone, self.is_chief = found is None, found is None or found.is_chief
        self.index = 0 if found is None else found.index
        self._has_met = False

    def all(self, part: Callable[[], T]) -> list[T]:
        """Has each process do a part, and returns what they have got, in their order: values of JSON.

        Raises:
            BaseException: A process has failed. The error is the same in all: that of the first of them.
        """
        if (found := self._peers) is None:
            return [part()]
        return self._do(part, lambda given: _outcome(found.gather(self._about, given, math.inf)))

    def for_chief(self, part: Callable[[], T]) -> list[T]:
        """Has each process do a part; returns what they have got: in the chief all of it, in the others the chief's.

        What all have got may be large where there are many, and would be sent to each of them.

        Returns:
            In the chief a list as `all` returns it; in the others a list of one.

        Raises:
            BaseException: As of `all`.
        """
        if (found := self._peers) is None:
            return [part()]
        every: list[T] = []

        def answer(given: list[Any]) -> Any:
            failed, values = _outcome(given)
            every.extend(values)
            return failed, values[:1]

        of_chief = self._do(part, lambda given: found.ask(self._about, given, answer, math.inf))
        return every or of_chief

    def chief(self, part: Callable[[], T]) -> T:
        """Has the chief do a part, and returns in all processes what it has got; raises what `all` raises."""
        return self.for_chief(part if self.is_chief else _nothing)[0]

    def _do(self, part: Callable[[], T], ask: Callable[[Any], tuple[Any, list[T]]]) -> list[T]:
        """Does this process's part, and returns what `ask` does of its outcome; raises the first failure of all."""
        assert self._peers is not None, "One alone has nobody to ask."
        if not self._has_met:
            self._peers.meet(self._about, START_TIMEOUT_SECS)
            self._has_met = True
        value, error = None, None
        try:
            value = part()
        except BaseException as raised:
            error = raised
        told = None if error is None else failures.told(error)
        try:
            failed, values = ask([told, value])
        except Exception as waiting:
            if error is not None:  # The others are somewhere else because of it.
                raise error from waiting
            raise
        if error is not None and not isinstance(error, Exception):
            raise error
        if failed is None:
            return values
        process, told = failed
        if error is not None and process == self.index:
            raise error
        if error is not None:  # The one that is raised may follow from it.
            _logger.error("Process %d has failed too: %s: %s", self.index, type(error).__name__, error)
        raise failures.retold(told, process)

    def apart(self, about: str) -> Together:
        """Returns the same processes for a thread of their own; all have come."""
        found = Together(self._peers, about)
        found._has_met = True
        return found


def _outcome(found: list[Any]) -> tuple[Any, list[Any]]:
    """Returns which process was the first that failed, and its error; and what all have got."""
    failed = next(([process, told] for process, (told, _) in enumerate(found) if told is not None), None)
    return failed, [value for _, value in found]


def _nothing() -> Any:
    return None


def current() -> Together:
    """Returns the processes that the main thread of this one saves and restores together with."""
    return Together(peers.current())
