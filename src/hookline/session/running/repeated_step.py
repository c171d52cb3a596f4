"""The repeated step: makes several steps in one run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import HostCall, Source
from hookline.session.plan.plan import input_tensors
from hookline.session.plan.result_readers import ResultReader, RunState, make_fetch_reader, make_stacked_reader
from hookline.session.plan.source_positions import BATCH_NOT_READY, run_with_batches
from hookline.session.program.program_cache import PURE_OPERATIONS
from hookline.session.running.cached_step import STEP_MISMATCH, CachedStep


class RepeatedStep(CachedStep):
    """A cached step whose program makes several steps in one run, at most `max_steps`.

    The arguments are as in `CachedStep`. The results of the caller and of stacked hooks have a row for each step. The
    fetches of other hooks are computed in the last step alone. The batches of a run are read from a block: they have
    equal shapes and dtypes.
    """

    def _make_reader(
        self,
        element: Tensor | Operation,
        output_indices: Mapping[Any, int],
        *,
        is_stacked: bool,
        is_deferred: bool = False,
    ) -> ResultReader:
        if not is_stacked:
            return make_fetch_reader(self.plan, element, output_indices)
        return make_stacked_reader(
            self.plan, element, self.program.row_indices if self.program else {}, on_host=is_deferred
        )

    @functools.cached_property
    def computes_hook_fetches(self) -> bool:
        """Whether the program can also compute the fetches of hooks that need only the last step.

        If those have an effect or take a batch, it cannot: each step would repeat the effect, or take a batch. Then the
        last step is a separate run.
        """
        of_each = set(self.plan.needed([*self.request.fetched, *self.request.hook_elements(is_stacked=True)]))
        more = [operation for operation in self.plan.operations if operation not in of_each]
        pure = all(type(operation) in (*PURE_OPERATIONS, HostCall) and operation.check is None for operation in more)
        takes_batch = any(isinstance(t.op, Source) for t in self._read_after_loop() if self.plan.find_feed(t) is None)
        return self.program is not None and not self.host_stage.before and pure and not takes_batch

    def _read_after_loop(self) -> list[Tensor]:
        """Returns the tensors of the last step that hooks and host operations read after the program."""
        fetched = [element for element in self.request.hook_elements(is_stacked=False) if isinstance(element, Tensor)]
        return [*fetched, *input_tensors(self.plan.after, lambda tensor: True)]

    def check(self) -> None:
        """Raises `ValueError` if the step needs more than one program and batches from iterators."""
        if (obstacle := self._obstacle) is not None:
            raise ValueError(
                f"steps_per_run={self.max_steps} needs a run that is one program with batches from iterators, and "
                f"nothing else; but {obstacle}. Leave out steps_per_run."
            )

    @functools.cached_property
    def _obstacle(self) -> str | None:
        plan, program = self.plan, self.program
        if self.request.fed:
            return f"it is fed {', '.join(repr(tensor.name) for tensor in self.request.fed)}"
        if self.uses_remote_variables:
            return "its variables live on parameter servers"
        if hosts := [operation for operation in (*plan.before, *plan.after) if operation in plan.caller_operations]:
            return f"{hosts[0].node_def} runs on the host"
        of_rows = set(plan.needed(self.request.hook_elements(is_stacked=True)))
        if hosts := [operation for operation in (*plan.before, *plan.after) if operation in of_rows]:
            return f"{hosts[0].node_def}, which a hook with stacked = True fetches in each step, runs on the host"
        if self.step_delta is None:
            return "only the device knows how far it advances the global step"
        for node in plan.sources:
            if why := node.block_error:
                return f"{node.node_def} {why}"
        if program is not None:
            for variable in (*program.written, *program.read_only):
                if variable.spec is specs.UNKNOWN:
                    return f"the structure of {variable.op.name!r} is not known beforehand"
        return None

    def await_batches(self, max_steps: int, upcoming_steps: float) -> int:
        """Waits for batches, and returns the number that a run may take, at most `max_steps`.

        These batches are ready, follow each other, and have equal shapes and dtypes.

        Args:
            max_steps: The largest number of steps of this run.
            upcoming_steps: The number of steps of this run and the following ones together, if it is known.
        """
        while not (count := self._num_ready(max_steps)):
            self._await_batches(max_steps, upcoming_steps)
        return count

    def _num_ready(self, max_count: int) -> int:
        with self._lock:
            self._session.check_usable()
            for source in self._open_sources or self._open_all():
                max_count = min(max_count, source.num_ready(max_count))
            return max_count

    def _start_with_batches(self, run: RunState, expected_step: int | None) -> Any:
        """Starts a run with several batches of each source."""
        count = self._num_ready(run.max_steps)
        if not count:
            return BATCH_NOT_READY
        for source in self._open_sources:
            source.raise_error()
        if count < run.min_steps:
            return STEP_MISMATCH
        run.num_steps, run.block_starts = count, {}
        for variable in self.counters:
            before_last = (self.plan.counter_delta(variable) or 0) * (count - 1)
            run.counters[variable] = self._store.read_counter(variable) + before_last
        return run_with_batches(
            self._source_nodes, self._open_sources, run, self.dispatch, run, expected_step, capacity=self.max_steps
        )
