"""Limits how far the host dispatches ahead of the device, and polls the latches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from hookline import errors
from hookline.graph import placement
from hookline.graph.conditions import Latch
from hookline.graph.global_step import find_global_step
from hookline.graph.nodes.check import Check
from hookline.session.plan.result_readers import RunState
from hookline.session.running.latches import LatchKey, LatchState, PendingRead


class DispatchThrottle:
    """Limits how far the host dispatches ahead of the device, and polls the latches.

    To wait at each run would cost more than a short step. So the session polls only after every `max_runs / 2` runs: a
    poll takes a fence, an array that is ready once the current run is computed, and waits for the fence of the poll
    before. Then the host starts the next `max_runs / 2` runs without a wait. This takes much less processor time than
    JAX's own bound of 32 computations, which wakes the host for each run.

    In a run of several steps each step counts, but together they count for at most `max_runs / 4`: the device needs a
    few more runs in its queue, or it would idle while the host wakes.

    Attributes:
        runs_until_poll: The number of runs until the next poll. The code that makes a run counts it down.
        max_run_cost: The largest number of runs that a run of several steps counts for.
    """

    def __init__(self, session: Any, max_runs: int) -> None:
        self._session, self._runs_per_poll = session, max_runs // 2
        self.runs_until_poll = self._runs_per_poll
        self.max_run_cost = max(1, self._runs_per_poll // 2)
        self._fence: jax.Array | None = None
        self._states: dict[LatchKey, LatchState] = {}
        self._pending_reads: list[PendingRead] = []
        # All SPMD processes must read a latch at the same run. So they never ask whether its value is ready.
        self._is_spmd = placement.is_spmd()

    def states(self, latches: Iterable[LatchKey]) -> list[LatchState]:
        """Returns the states of latches, for a program that carries them."""
        return [self._states.setdefault(latch, LatchState(latch, self._session.graph)) for latch in latches]

    def poll(self, step: Any, run: RunState) -> None:
        """Waits if the device is too far behind, and reads the latches.

        Raises:
            InvalidArgumentError: The failure that `deliver_pending` raises, if it is known already.
        """
        lock = self._session.lock
        with lock:
            fence = step.fence(run) if self._session.is_usable else None
            if fence is None:  # The run started no program; the next run polls.
                return
            previous, self._fence = self._fence, fence
        self.runs_until_poll = self._runs_per_poll
        # Without the lock: a thread that reads or closes the session must not wait for the device. JAX crashes in
        # `is_ready` of a deleted array.
        if previous is not None and not previous.is_deleted():
            previous.block_until_ready()
        with lock:
            # The device has computed the values that were not ready at the last poll.
            self._read(self._pending_reads)
            self._pending_reads = [pending for latch in self._states if (pending := self._peek(latch))]
            self._raise_failure()

    def deliver_pending(self) -> None:
        """See `Session.deliver_pending`."""
        self._await(Check)
        with self._session.lock:
            self._raise_failure()

    def latched(self, operation: Latch, wait: bool) -> int | None:
        """See `Session.latched`."""
        if not isinstance(operation, Latch):
            raise TypeError(f"Session.latched requires an operation of hookline.latch, got {operation!r}.")
        if wait:
            self._await(operation)
        state = self._states.get(operation)
        return None if state is None else state.found_step

    def raise_known_failure(self) -> None:
        """Raises the failure of a check in the runs whose results are ready."""
        with self._session.lock:
            self._peek(Check)
            self._raise_failure()

    def _await(self, latch: LatchKey) -> None:
        """Waits for all runs so far, and reads a latch."""
        with self._session.lock:
            pending = self._peek(latch)
        if pending is not None:
            pending.value.block_until_ready()
            with self._session.lock:
                self._read([pending])

    # Reading. The caller of these methods holds the session's lock. They skip a deleted value: the next run raises the
    # error.

    def _peek(self, latch: LatchKey) -> PendingRead | None:
        """Reads the value of a latch if it is ready; otherwise returns the value, for which the caller must wait."""
        state = self._states.get(latch)
        if state is None or state.found_step is not None or not state.runs or state.value.is_deleted():
            return None
        if not self._is_spmd and state.value.is_ready():
            self._session.latched_count += state.read(state.value)
            return None
        return PendingRead(state, state.value, state.step_ranges)

    def _read(self, pending: Iterable[PendingRead]) -> None:
        for each in pending:
            if each.state.step_ranges is each.step_ranges and not each.value.is_deleted():
                self._session.latched_count += each.state.read(each.value)

    def _raise_failure(self) -> None:
        state = self._states.get(Check)
        if state is None or state.found_step is None:
            return
        step, (index, *details) = state.found_step, state.details
        state.reset()  # To find the next failure.
        graph = self._session.graph
        operation = graph.get_operations()[index]
        assert operation.check is not None, "It has failed."
        when = "" if find_global_step(graph) is None else f", in the run that led to global step {step}"
        try:
            problem = operation.check.message(*details)
        except Exception as error:
            problem = f"its check has failed, and so has the function for its message ({type(error).__name__}: {error})"
        text = f"{operation.node_def}: {problem}{when}."
        error = errors.InvalidArgumentError(operation.node_def, operation, text)
        self._session.session.mark_invalid(error)
        raise error

    def final_failure(self) -> errors.InvalidArgumentError | None:
        """Returns the error of a failed check when a session ends; None if none has failed, or the session is lost."""
        try:
            if self._session.is_usable:
                self.deliver_pending()
        except errors.InvalidArgumentError as failure:
            return failure
        except jax.errors.JaxRuntimeError:
            pass
        return None

    def reset(self) -> None:
        """Resets the latches, because another model was loaded."""
        self._pending_reads.clear()
        for state in self._states.values():
            state.reset()

    def clear(self) -> None:
        """Drops the fence and resets the latches."""
        self._fence = None
        self.reset()
