"""The repeated step: a cached step that one run makes several times."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import HostCall, Source
from hookline.session.plan.getters import Getter, Run, fetch_getter, rows_getter
from hookline.session.plan.plan import input_tensors
from hookline.session.plan.source_positions import NOT_READY, feed
from hookline.session.program.program_cache import PURE
from hookline.session.running.cached_step import CHANGED, CachedStep


class RepeatedStep(CachedStep):
    """A step whose program makes a given number of steps, at most `capacity`; the arguments are those of `CachedStep`.

    The caller's fetches have a row for each step, and so have the fetches that hooks want in rows; their other fetches
    are computed in the last step alone. Batches come in blocks, each of one form.
    """

    def _getter(
        self, element: Tensor | Operation, places: Mapping[Any, int], *, in_rows: bool, is_late: bool = False
    ) -> Getter:
        if not in_rows:
            return fetch_getter(self.plan, element, places)
        return rows_getter(self.plan, element, self.program.row_places if self.program else {}, on_host=is_late)

    @functools.cached_property
    def holds_hook_fetches(self) -> bool:
        """Whether the program can compute the hooks' fetches of the last step, too; else they need their own run.

        It cannot if they have an effect or take a batch: each of the steps would do that.
        """
        of_each = set(self.plan.needed([*self.request.fetched, *self.request.of_hooks(in_rows=True)]))
        more = [operation for operation in self.plan.operations if operation not in of_each]
        looks = all(type(operation) in (*PURE, HostCall) and operation.check is None for operation in more)
        takes_batch = any(isinstance(t.op, Source) for t in self._looked_at() if self.plan.fed_place(t) is None)
        return self.program is not None and not self.hosts.before and looks and not takes_batch

    def _looked_at(self) -> list[Tensor]:
        """Returns the tensors that are read outside of the program for the last step alone."""
        asked = [element for element in self.request.of_hooks(in_rows=False) if isinstance(element, Tensor)]
        return [*asked, *input_tensors(self.plan.after, lambda tensor: True)]

    def check(self) -> None:
        """Raises `ValueError` if the step needs more than a program and batches."""
        if (obstacle := self._obstacle) is not None:
            raise ValueError(
                f"steps_per_run={self.capacity} needs a run that is a program and takes its batches from iterators, "
                f"and nothing else; but {obstacle}. Leave out steps_per_run."
            )

    @functools.cached_property
    def _obstacle(self) -> str | None:
        plan, program = self.plan, self.program
        if self.request.fed:
            return f"it is fed {', '.join(repr(tensor.name) for tensor in self.request.fed)}"
        if self.exchanges:
            return "its variables live on parameter servers"
        if hosts := [operation for operation in (*plan.before, *plan.after) if operation in plan.trained]:
            return f"{hosts[0].node_def} runs on the host"
        of_rows = set(plan.needed(self.request.of_hooks(in_rows=True)))
        if hosts := [operation for operation in (*plan.before, *plan.after) if operation in of_rows]:
            return f"{hosts[0].node_def}, of which a hook with stacked = True wants each step, runs on the host"
        if self.gain is None:
            return "only the device knows how far it advances the global step"
        for node in plan.sources:
            if why := node.why_no_blocks:
                return f"{node.node_def} {why}"
        if program is not None:
            for variable in (*program.written, *program.read):
                if variable.spec is specs.UNKNOWN:
                    return f"the structure of {variable.op.name!r} is not known beforehand"
        return None

    def available(self, most: int, to_come: float) -> int:
        """Waits for the next batches; returns how many of one form are ready in a row, at most `most`.

        `to_come` is the number of steps of this run and the following ones together, as far as it is known.
        """
        while not (count := self._ready(most)):
            self._await_batches(most, to_come)
        return count

    def _ready(self, most: int) -> int:
        with self._lock:
            self._session.check_usable()
            for source in self._opened or self._open():
                most = min(most, source.ready(most))
            return most

    def _start_fed(self, run: Run, expected: int | None) -> Any:
        """Starts a run with a block of batches of each source."""
        count = self._ready(run.most)
        if not count:
            return NOT_READY
        for source in self._opened:
            source.check()
        if count < run.least:
            return CHANGED
        run.count, run.starts = count, {}
        for variable in self.counters:
            before_last = (self.plan.gain(variable) or 0) * (count - 1)
            run.counters[variable] = self._store.counter(variable) + before_last
        return feed(self._nodes, self._opened, run, self.dispatch, run, expected, capacity=self.capacity)
