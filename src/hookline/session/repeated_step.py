"""The repeated step: a cached step that is made several times in one run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hookline.graph import spec as specs
from hookline.graph.nodes import Source
from hookline.session.cached_step import CHANGED, CachedStep
from hookline.session.getters import Run


class RepeatedStep(CachedStep):
    """A step whose program makes as many as it is told to, at most `capacity`; the arguments are of `CachedStep`.

    Its results have a row for each step. Batches come in blocks, each of one form.
    """

    def check(self) -> None:
        """Raises `ValueError` where the step is more than a program and batches."""
        obstacle = self._obstacle()
        if obstacle is not None:
            raise ValueError(
                f"steps_per_run={self.capacity} needs a run that is a program and takes its batches from iterators, and "
                f"nothing else; but {obstacle}. Leave out steps_per_run."
            )

    def _obstacle(self) -> str | None:
        plan, program = self.plan, self.program
        if self.fed_tensors:
            return f"it is fed {', '.join(repr(tensor.name) for tensor in self.fed_tensors)}"
        if self.exchanges:
            return "its variables live on parameter servers"
        if hosts := [*plan.early, *plan.late]:
            return f"{hosts[0].node_def} runs on the host"
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

    def run_several(self, most: int, expected: int | None = None) -> Any:
        """Makes as many steps as there are batches of one form for, at most `most`.

        Args:
            most: At most `capacity`.
            expected: As of `run`.

        Returns:
            How many, and the results as of `run`; or `CHANGED`.
        """
        session, run, nodes = self._session, Run(), self.plan.sources
        run.feeds = ()
        run.begin()
        try:
            while True:
                with self._lock:
                    session.check_usable()
                    awaited, run.count = self._sources.available(nodes, most)
                    if awaited is None:
                        for variable in self.counters:
                            run.counters[variable] = self._store.counter(variable)
                        if self._dispatch_several(run, expected) is CHANGED:
                            return CHANGED
                        break
                awaited.wait(most)  # As in `run`.
            ahead = session.ahead
            ahead.left -= run.count
            if ahead.left <= 0:
                ahead.look(self, run)
        except MemoryError as error:
            error.add_note(f"hookline: steps_per_run={self.capacity} has so many batches read at once. Choose less.")
            raise
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return run.count, self.results(run)

    def _dispatch_several(self, run: Run, expected: int | None) -> Any:
        nodes = self.plan.sources
        if not nodes:
            return self.dispatch(run, expected, None, run.count, (np.array([run.count], np.int32),))

        def start(items: Any) -> Any:
            run.starts = {node: item.start for node, item in zip(nodes, items, strict=True)}
            assert self.program is not None
            places = [run.starts[tensor.op] for tensor in self.program.inputs if isinstance(tensor.op, Source)]
            return self.dispatch(run, expected, None, run.count, (np.array([run.count, *places], np.int32),))

        return self._sources.feed(nodes, run, start, capacity=self.capacity)
