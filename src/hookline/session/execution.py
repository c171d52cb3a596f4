"""An execution: a plan made ready to run as often as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from hookline.graph.graph import Operation, Tensor
from hookline.graph.variable import Variable
from hookline.session.device_stage import DeviceStage
from hookline.session.feeds import feeder
from hookline.session.fetches import called
from hookline.session.getters import Run, counter, fetch_getter, input_getter
from hookline.session.host_stage import HostStage
from hookline.session.latches import Latches
from hookline.session.late import LateResults
from hookline.session.plan import Plan, input_tensors
from hookline.session.programs import Programs, Request
from hookline.session.store import VariableStore


class Execution:
    """What a request needs to be carried out: its plan, its stages, its feeds' checks, and where its results are.

    Args:
        request: What is asked for.
        programs: The programs of the session.
        latches: What its latches hold.
        global_step: The graph's global step, if it has one.
        store: Where the variables live.

    Attributes:
        plan: The plan.
        hosts: Its host operations.
        program: Its program; None if the device has nothing to do.
        device: Its device stage, if it has a program.
        fed: The tensors that are fed.
        feeders: For each of them a function that checks its value.
        getters: For each result of the caller, then of the hooks, a function that finds it in a run.
        counters: The counters whose value the run needs from the host.
        step_gain: By how much it advances the global step; None if only the device knows.
        writes: Whether it changes a variable.
        exchanges: Whether it has to do with variables that live elsewhere.
        launch: Starts a run where that is nothing but a program, of variables that live here, and what nobody in the
            run awaits; else None.
        repeat: What makes the run again, if there is such a thing; known once it `has_run`.
        has_run: Whether a run of it was applied.
    """

    def __init__(
        self,
        request: Request,
        programs: Programs,
        latches: Latches,
        global_step: Variable | None,
        store: VariableStore,
    ) -> None:
        fetched, watched, late = request.fetched, request.watched, request.late
        self.plan = plan = Plan(fetched, [*watched, *late], request.fed, store.is_remote)
        self.hosts = hosts = HostStage(plan, [*fetched, *watched], late)
        self.fed = request.fed
        self.feeders = [feeder(tensor) for tensor in request.fed]
        choice = programs.choose(plan, request, hosts.pulled, store)
        self.program, places = choice.program, choice.places()
        hosts.find_outputs(places)
        self.getters = [fetch_getter(plan, element, places) for element in (*fetched, *watched)]
        self._late_getters = [fetch_getter(plan, element, places) for element in late]
        self.counters = _counters(plan, [*fetched, *watched, *late])
        self.step_gain: int | None = 0 if global_step is None else plan.gain(global_step)
        written = self.program.written if self.program else []
        hosted = self.program.hosted if self.program else []
        self.writes = bool(written or plan.remote)
        read = [v for v in self.counters if v is not global_step]
        if self.program is not None:
            read += [*self.program.counted, *self.program.read]
        self.exchanges = bool(plan.remote) or any(store.is_remote(variable) for variable in read)
        self.device: DeviceStage | None = None
        if self.program is not None:
            # What a remote update made of its variables is asked for only where somebody wants it.
            results = (*fetched, *watched, *late, *input_tensors(plan.late, lambda tensor: True))
            computed = frozenset(self.program.plan.operations)
            self.device = DeviceStage(
                plan,
                self.program,
                [input_getter(plan, tensor, programs.constants, computed) for tensor in self.program.inputs],
                choice.mask,
                store,
                latches,
                pulled=[u for u in plan.remote if any(isinstance(t, Tensor) and t.op is u for t in results)],
                step_gain=self.step_gain,
                # Of a global step that lives here and is counted: the last one that its dtype holds.
                last_step=_last_step(global_step) if self.step_gain and global_step in (*written, *hosted) else None,
            )

        more = self.exchanges or plan.early or hosts.after or plan.sources or self.counters
        self.launch: Callable[[Run], None] | None = None if more or self.device is None else self.device.launch
        self.repeat: Any = None
        self.has_run = False

    def sources(self) -> list[tuple[int | None, Any]]:
        """Returns of each input of the program which feed it is, or None and the constant; only with `launch`."""
        assert self.program is not None
        assert self.device is not None
        places = [self.plan.fed_place(tensor) for tensor in self.program.inputs]
        pairs = zip(places, self.device.inputs, strict=True)
        return [(None, get(Run())) if place is None else (place[0], None) for place, get in pairs]

    def late_results(self, run: Run, session: Any, assemble: Callable[[Sequence[Any]], Any]) -> LateResults:
        """Returns the results that the run has not waited for."""
        if self.launch is not None:  # It has made no room for what the host computes.
            run.begin()
        return self.hosts.late_results(run, session, lambda: assemble([*map(called, self._late_getters, repeat(run))]))


def _counters(plan: Plan, elements: Iterable[Tensor | Operation]) -> list[Variable]:
    """Returns the counters whose value some result or host operation needs."""
    arguments = input_tensors((*plan.early, *plan.late), lambda tensor: True)
    tensors = [*arguments, *(element for element in elements if isinstance(element, Tensor))]
    found = (counter(plan, tensor) for tensor in tensors)
    return list(dict.fromkeys(variable for variable in found if variable is not None))


def _last_step(global_step: Variable | None) -> int | None:
    return None if global_step is None else int(np.iinfo(global_step.dtype).max)
