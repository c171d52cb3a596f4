"""Joint actions of SPMD processes during a save or a restore, with one outcome for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from hookline import log
from hookline.checkpoint.saving import failures
from hookline.coordination import process_group
from hookline.coordination.process_group import START_TIMEOUT_SECS, ProcessGroup

T = TypeVar("T")

_logger = log.get_logger(__name__)

_ABOUT = "checkpoints"


class Collective:
    """The processes that save and restore together; or a single process.

    All of them call the same methods in the same order. They first meet at a barrier, where a process that does not
    arrive in time is an error. After that they wait for each other without a limit.

    Args:
        group: The processes; None for a single process.
        tag: The name of the action; actions of different threads need different names.

    Attributes:
        is_alone: Whether there is one process.
        is_chief: Whether this process writes, and chooses the path.
        index: The index of this process.

    Example:
        >>> alone = Collective(None)
        >>> alone.run_on_all(lambda: 3), alone.run_on_chief(lambda: "model.ckpt-1")
        ([3], 'model.ckpt-1')
        >>> alone.gather_to_chief(lambda: 3)
        [3]
    """

    def __init__(self, group: ProcessGroup | None, tag: str = _ABOUT) -> None:
        self._group, self._tag = group, tag
        self.is_alone, self.is_chief = group is None, group is None or group.is_chief
        self.index = 0 if group is None else group.index
        self._has_met = False

    def run_on_all(self, part: Callable[[], T]) -> list[T]:
        """Calls `part` in each process, and returns the results, which are JSON values, in the order of the processes.

        Raises:
            BaseException: A process has failed. All raise the same error, from the first failed process.
        """
        if (found := self._group) is None:
            return [part()]
        return self._exchange(part, lambda given: _split_results(found.all_gather(self._tag, given, math.inf)))

    def gather_to_chief(self, part: Callable[[], T]) -> list[T]:
        """Calls `part` in each process; returns all results in the chief, and the chief's result in the others.

        With many processes the results may be too large to send all of them to each process.

        Returns:
            In the chief a list as in `run_on_all`; in the others a list of one.

        Raises:
            BaseException: As in `run_on_all`.
        """
        if (found := self._group) is None:
            return [part()]
        every: list[T] = []

        def answer(given: list[Any]) -> Any:
            failed, values = _split_results(given)
            every.extend(values)
            return failed, values[:1]

        of_chief = self._exchange(part, lambda given: found.all_reduce(self._tag, given, answer, math.inf))
        return every or of_chief

    def run_on_chief(self, part: Callable[[], T]) -> T:
        """Calls `part` in the chief, and returns its result in all processes; raises errors as `run_on_all` does."""
        if self.is_alone:
            return part()
        return self.gather_to_chief(part if self.is_chief else _nothing)[0]

    def _exchange(self, part: Callable[[], T], ask: Callable[[Any], tuple[Any, list[T]]]) -> list[T]:
        """Calls `part`, exchanges the outcome through `ask`, and returns the values; raises the first failure."""
        assert self._group is not None, "A single process exchanges nothing."
        if not self._has_met:
            self._group.barrier(self._tag, START_TIMEOUT_SECS)
            self._has_met = True
        value, error = None, None
        try:
            value = part()
        except BaseException as raised:  # The other processes wait for the outcome.
            error = raised
        serialised = None if error is None else failures.serialize_error(error)
        try:
            failed, values = ask([serialised, value])
        except Exception as waiting:
            if error is not None:  # The exchange may have failed because of it.
                raise error from waiting
            raise
        if error is not None and not isinstance(error, Exception):
            raise error
        if failed is None:
            return values
        process, serialised = failed
        if error is not None and process == self.index:
            raise error
        if error is not None:  # The raised error may be a consequence of this one.
            _logger.error("Process %d has failed too: %s: %s", self.index, type(error).__name__, error)
        raise failures.deserialize_error(serialised, process)

    def meet(self) -> None:
        """Waits until all processes are here."""
        self.run_on_all(_nothing)

    def with_tag(self, tag: str) -> Collective:
        """Returns the same processes for a separate thread, without another barrier."""
        found = Collective(self._group, tag)
        found._has_met = True
        return found


def _split_results(found: list[Any]) -> tuple[Any, list[Any]]:
    """Returns the first failed process with its error, or None; and the results of all."""
    failed = next(([process, error] for process, (error, _) in enumerate(found) if error is not None), None)
    return failed, [value for _, value in found]


def _nothing() -> Any:
    return None


def current() -> Collective:
    """Returns the processes that save and restore together, for the main thread."""
    return Collective(process_group.current())
