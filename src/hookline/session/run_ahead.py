"""A bound on how far the host runs ahead of the device, and a regular look at the latches."""

from __future__ import annotations

from typing import Any

import jax

from hookline import errors
from hookline.graph.check import Check
from hookline.graph.global_step import counted_global_step
from hookline.graph.latch import Latch
from hookline.session.getters import Run
from hookline.session.latches import Latches, Latching


class RunAhead:
    """Bounds how far the host runs ahead of the device, and reads the latches.

    A check at each run would cost more than a short step. So the session checks once every half of the bound: a look
    marks the current run, and lets the host continue when the device has passed the previous mark. The host then starts
    half of the bound in a row. That takes much less processor time than to be woken for each run, as by JAX's own bound
    of 32 computations.

    Each of several steps in a run counts, but together they count for at most a quarter of the bound: without a few
    more runs behind the current one, the device would idle while the host is woken.

    Attributes:
        left: The number of runs until the next look; counted down by the caller that makes a run.
        heaviest: The largest count of a run of several steps.
        latches: The latches of the session.
    """

    def __init__(self, session: Any, max_runs: int) -> None:
        self._session, self._half = session, max_runs // 2
        self.left = self._half
        self.heaviest = max(1, self._half // 2)
        self.latches = Latches(session.graph)
        self._mark: jax.Array | None = None

    def look(self, step: Any, run: Run) -> None:
        """Waits if the device is too far behind, and reads the latches.

        Raises:
            InvalidArgumentError: The failure that `settle` raises, if it is known already.
        """
        lock = self._session.lock
        with lock:
            token = step.token(run) if self._session.usable else None
            if token is None:  # Nothing was started; the next run looks.
                return
            mark, self._mark = self._mark, token
        self.left = self._half
        # Not under the lock: reading and closing must not wait for the device. JAX crashes when asked whether a deleted
        # array is ready.
        if mark is not None and not mark.is_deleted():
            mark.block_until_ready()
        with lock:
            self.latches.look()
            self._session.latched_count = self.latches.latched_count
            self._raise_failure()

    def settle(self) -> None:
        """See `Session.settle`."""
        self.await_latch(Check)
        with self._session.lock:
            self._raise_failure()

    def await_latch(self, latch: Latching) -> None:
        """Waits for all runs so far, and reads a latch."""
        lock = self._session.lock
        with lock:
            unread = self.latches.unread(latch)
            self._session.latched_count = self.latches.latched_count
        if unread is not None:
            unread.value.block_until_ready()
            with lock:
                self.latches.read([unread])
                self._session.latched_count = self.latches.latched_count

    def latched(self, operation: Latch, wait: bool) -> int | None:
        """See `Session.latched`."""
        if not isinstance(operation, Latch):
            raise TypeError(f"Session.latched requires an operation of hookline.latch, got {operation!r}.")
        if wait:
            self.await_latch(operation)
        return self.latches.found(operation)

    def raise_known_failure(self) -> None:
        """Raises the failure of a check in the runs whose results are ready."""
        with self._session.lock:
            self.latches.peek(Check)
            self._raise_failure()

    def _raise_failure(self) -> None:
        found = self.latches.take_failure()
        if found is None:
            return
        step, (index, *details) = found
        graph = self._session.graph
        operation = graph.get_operations()[index]
        assert operation.check is not None, "It has failed."
        when = "" if counted_global_step(graph) is None else f", in the run that led to global step {step}"
        try:
            said = operation.check.message(*details)
        except Exception as error:
            said = f"its check has failed, and the message of the check too ({type(error).__name__}: {error})"
        text = f"{operation.node_def}: {said}{when}."
        error = errors.InvalidArgumentError(operation.node_def, operation, text)
        self._session.session.condemn(error)
        raise error

    def last_failure(self) -> errors.InvalidArgumentError | None:
        """Returns the error that `settle` raises, for a session that ends; None if the session is lost."""
        try:
            if self._session.usable:
                self.settle()
        except errors.InvalidArgumentError as failure:
            return failure
        except jax.errors.JaxRuntimeError:
            pass
        return None

    def forget(self) -> None:
        """Drops the mark and resets the latches."""
        self._mark = None
        self.latches.reset()
