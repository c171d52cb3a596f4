"""Carrying a plan out: host stage, device stage, host stage, and the results in the caller's structure."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import OutOfRangeError
from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import Constant, Group, HostCall, SessionCall, Source
from hookline.graph.variable import Update, Variable, VariableRead
from hookline.graph.views import take_path
from hookline.session.feeds import feeder
from hookline.session.late import LateResults
from hookline.session.plan import Key, Plan, input_tensors
from hookline.session.program import Program
from hookline.session.sharing import Sharing, Watch
from hookline.session.store import VariableStore

# Larger constants are handed to the program as arguments; smaller ones are compiled into it.
_LARGE_CONSTANT_BYTES = 4096

Getter = Callable[["Run"], Any]


class Run:
    """The values of one run while it is under way."""

    __slots__ = ("applied", "counters", "feeds", "hosts", "outputs", "pulled")

    def __init__(self, feeds: list[Any]) -> None:
        self.feeds = feeds
        # Known as soon as it is so: what comes behind may fail, or be interrupted.
        self.applied = False
        self.outputs: Sequence[Any] = ()
        self.counters: dict[Variable, int] = {}
        self.hosts: dict[Operation, Any] = {}
        self.pulled: dict[int, Any] = {}


class Execution:
    """A plan made ready to run: its program, its feeds' checks, and for each result where to find it.

    Args:
        fetched: What the caller asked for.
        watched: What hooks asked for.
        late: What hooks asked for that no run waits for.
        by_hook: What each hook asked for, of both kinds.
        sharing: What hooks have watched so far.
        fed: Tensors that are fed.
        programs: Programs made so far in this session, which plans of the same device work share.
        constants: Large constants that are on the device already.
        global_step: The graph's global step, if it has one.
        store: Where the variables live.
    """

    def __init__(
        self,
        fetched: Sequence[Tensor | Operation],
        watched: Sequence[Tensor | Operation],
        late: Sequence[Tensor | Operation],
        by_hook: Sequence[Sequence[Tensor | Operation]],
        sharing: Sharing,
        fed: tuple[Tensor, ...],
        programs: MutableMapping[Any, Program],
        constants: MutableMapping[Constant, Any],
        global_step: Variable | None,
        store: VariableStore,
    ) -> None:
        awaited, watched = watched, [*watched, *late]
        self.plan = plan = Plan(fetched, watched, fed, store.is_remote)
        self.deferred = self._deferred([*fetched, *awaited]) if late else []
        self.hosts_after = [operation for operation in plan.late if operation not in self.deferred]
        self.feeders = [feeder(tensor) for tensor in fed]
        self.late_inputs = input_tensors(plan.late, plan.needs_device)
        self._by_hook, self._sharing = by_hook, sharing
        # Of what hooks may watch in its program, which is wanted in this run.
        self.mask: tuple[jax.Array, ...] = ()
        self.program = self._program(fetched, watched, fed, programs, store)
        places = self.program.places([bool(wanted) for wanted in self.mask]) if self.program else {}
        self.input_getters = [self._input_getter(t, constants) for t in self.program.inputs] if self.program else []
        self._places = places
        self.getters = [self._fetch_getter(element, places) for element in (*fetched, *awaited)]
        self.late_getters = [self._fetch_getter(element, places) for element in late]
        self.late_places = self._late_places(late)
        self.counters = self._counters(fetched, watched)
        self._host_arguments = {o: [self._host_getter(t, o) for t in o.inputs] for o in (*plan.early, *plan.late)}
        # They need what only the lock keeps still: counters, the session, or which batch is this run's.
        self.early_is_inside = any(
            isinstance(operation, SessionCall)
            or any(isinstance(t.op, VariableRead) or t.op in plan.sources for t in operation.inputs)
            for operation in plan.early
        )
        self.step_gain: int | None = 0 if global_step is None else plan.gain(global_step)
        written = self.program.written if self.program else []
        self.writes = bool(written or plan.remote)
        self.gains = [None if plan.is_guarded(v) or not plan.is_host_known(v) else plan.gain(v) for v in written]
        # What a remote update made of its variables is asked for only where somebody wants it.
        results = (*fetched, *watched, *input_tensors(plan.late, lambda tensor: True))
        self.pulled = [u for u in plan.remote if any(isinstance(t, Tensor) and t.op is u for t in results)]
        reads = [*(self.program.kept if self.program else ()), *(v for v in self.counters if v is not global_step)]
        self.exchanges = bool(plan.remote) or any(store.is_remote(variable) for variable in reads)
        # Of a global step that lives here and is counted: the last one that its dtype holds.
        self.counts_up_to: int | None = None
        if self.step_gain and global_step is not None and global_step in written:
            self.counts_up_to = int(np.iinfo(global_step.dtype).max)

    def _program(self, fetched: Any, watched: Any, fed: Any, programs: Any, store: VariableStore) -> Program | None:
        plan = self.plan

        def outputs_of(elements: Any) -> dict[Key, Tensor]:
            return {e.key: e for e in elements if isinstance(e, Tensor) and self._comes_from_device(e)}

        outputs = outputs_of(fetched)
        late = {t.key: t for t in self.late_inputs if self._comes_from_device(t)}
        # What a host operation of the caller's needs is the caller's; what one of a hook's needs is watched.
        callers = {t.key for o in plan.late if o in plan.trained for t in o.inputs}
        outputs |= {key: tensor for key, tensor in late.items() if key in callers}
        watching = {key: t for key, t in (outputs_of(watched) | late).items() if key not in outputs}
        if not plan.device and not plan.remote and not outputs and not watching:
            return None
        always: frozenset[Operation] = frozenset(plan.device)
        watches: Sequence[Watch] = ()
        if watching:
            shared = self._sharing.shared(plan, fetched, self._by_hook, fed, outputs, store)
            if shared is not None:
                plan, always, watches, mask = shared
                self.mask = tuple(map(jnp.asarray, mask))
        inputs = input_tensors((*plan.device, *plan.remote), self._is_input)
        for tensor in (*outputs.values(), *watching.values()):
            if self._is_input(tensor):
                inputs.append(tensor)
        inputs = list({self._input_key(tensor): self._as_input(tensor, fed) for tensor in inputs}.values())

        def order(tensors: Any) -> list[Tensor]:
            return sorted(tensors, key=lambda tensor: (tensor.op.index, repr(tensor.path)))

        inputs, out, watch = order(inputs), order(outputs.values()), [] if watches else order(watching.values())
        key = (
            tuple(operation.index for operation in (*plan.device, *plan.remote)),
            tuple(operation.index for operation in plan.device if operation in plan.trained),
            *(tuple(tensor.key for tensor in tensors) for tensors in (inputs, out, watch, *watches)),
        )
        found = programs.get(key)
        if found is None:
            found = programs[key] = Program(
                plan, inputs, out, watch, store.structure, store.worker_index, always=always, watches=watches
            )
        return found

    def _comes_from_device(self, tensor: Tensor) -> bool:
        return self.plan.needs_device(tensor)

    def _is_input(self, tensor: Tensor) -> bool:
        """Whether a tensor that the device needs is handed to its program from outside."""
        if self.plan.fed_place(tensor) is not None or isinstance(tensor.op, HostCall | SessionCall | Source):
            return True
        return isinstance(tensor.op, Constant) and _is_large(tensor.op)

    def _input_key(self, tensor: Tensor) -> Key:
        place = self.plan.fed_place(tensor)
        return (tensor.op, tensor.path[: place[1]] if place else ())

    def _as_input(self, tensor: Tensor, fed: tuple[Tensor, ...]) -> Tensor:
        place = self.plan.fed_place(tensor)
        return fed[place[0]] if place else tensor.op.output

    def _counters(self, fetched: Any, watched: Any) -> list[Variable]:
        """Returns the counters whose value some result or host operation needs."""
        readers = input_tensors((*self.plan.early, *self.plan.late), lambda tensor: self._counter(tensor) is not None)
        elements = (*readers, *(element for element in (*fetched, *watched) if isinstance(element, Tensor)))
        found = (self._counter(element) for element in elements)
        return list(dict.fromkeys(variable for variable in found if variable is not None))

    def _counter(self, tensor: Tensor) -> Variable | None:
        """Returns the variable that `tensor` reads if the host knows its value in this run."""
        if not isinstance(tensor.op, VariableRead) or self.plan.fed_place(tensor) is not None:
            return None
        return tensor.op.variable if self.plan.is_host_known(tensor.op.variable) else None

    def _getter(self, element: Tensor | Operation, places: dict[Key, int], reader: Operation | None = None) -> Getter:
        """Returns a function that finds the value of a fetch, or of an argument of `reader`, in a run."""
        if isinstance(element, Operation) or isinstance(element.op, Group):
            return lambda run: None
        op, path = element.op, element.path
        fed = self.plan.fed_place(element)
        if fed is not None:
            place, depth = fed
            return (
                (lambda run: take_path(run.feeds[place], path[depth:]))
                if path[depth:]
                else lambda run: run.feeds[place]
            )
        variable = self._counter(element)
        if variable is not None:
            offset = self.plan.gain(variable, self.plan.version(variable, reader)) or 0
            scalar = np.dtype(variable.dtype).type
            return lambda run: scalar(run.counters[variable] + offset)
        if element.key in places and reader is None:
            place = places[element.key]
            return lambda run: run.outputs[place]
        if isinstance(op, Constant):
            constant = take_path(op.value, path)
            return lambda run: constant
        return lambda run: take_path(run.hosts[op], path)

    def _input_getter(self, tensor: Tensor, constants: MutableMapping[Constant, Any]) -> Getter:
        if not isinstance(tensor.op, Constant) or self.plan.fed_place(tensor) is not None:
            return self._getter(tensor, {})
        # It would travel from the host on every run.
        if tensor.op not in constants:
            constants[tensor.op] = tensor.op.on_device()
        value = take_path(constants[tensor.op], tensor.path)
        return lambda run: value

    def _fetch_getter(self, element: Tensor | Operation, places: dict[Key, int]) -> Getter:
        get = self._getter(element, places)
        if isinstance(element, Tensor) and isinstance(element.op, Constant) and self.plan.fed_place(element) is None:
            # What a caller gets of a constant is an array, which the caller cannot change.
            value = take_path(element.op.on_device(), element.path)
            return lambda run: value
        return get

    def _host_getter(self, tensor: Tensor, reader: Operation) -> Getter:
        """Returns a function that finds an argument of a host operation in a run."""
        keys = [late.key for late in self.late_inputs]
        if tensor.key in keys:
            place = keys.index(tensor.key)
            return lambda run: run.pulled[place]
        return self._getter(tensor, {}, reader)

    # What no run waits for ----------------------------------------------------------------------------------------

    def _deferred(self, awaited: Sequence[Tensor | Operation]) -> list[HostCall | SessionCall]:
        """Returns the host operations that need not run in the run itself."""
        needed = set(self.plan.needed(awaited))
        for operation in self.plan.operations:
            if isinstance(operation, SessionCall | Update):  # They belong into the run, and so does what they need.
                needed.update(self.plan.needed([operation]))
        return [operation for operation in self.plan.late if operation not in needed]

    def _late_places(self, late: Sequence[Tensor | Operation]) -> list[int]:
        tensors = [*input_tensors(self.deferred, lambda tensor: True), *(e for e in late if isinstance(e, Tensor))]
        return [self._places[tensor.key] for tensor in tensors if tensor.key in self._places]

    def late_results(self, run: Run, session: Any, assemble: Callable[[Sequence[Any]], Any]) -> LateResults:
        """Returns the results that the run has not waited for."""

        def compute() -> Any:
            self.compute_hosts(self.deferred, run, session)
            return assemble([get(run) for get in self.late_getters])

        return LateResults(compute, jax.tree.leaves([run.outputs[place] for place in self.late_places]))

    # Running ----------------------------------------------------------------------------------------------------

    def compute_hosts(self, operations: Sequence[HostCall | SessionCall], run: Run, session: Any) -> None:
        """Runs host operations, in creation order, on the values that the run has so far."""
        if run.outputs and self.late_inputs:
            wanted = {tensor.key for operation in operations for tensor in operation.inputs}
            found = {i: self._places[t.key] for i, t in enumerate(self.late_inputs) if t.key in wanted}
            run.pulled.update(zip(found, jax.device_get([run.outputs[p] for p in found.values()]), strict=True))
        for operation in operations:
            given = [get(run) for get in self._host_arguments[operation]]
            if isinstance(operation, SessionCall):
                run.hosts[operation] = operation.fn(session, *given)
                continue
            values = iter(given)
            try:
                with session.host_lock(operation):
                    run.hosts[operation] = operation.call(lambda _, values=values: next(values))
            except StopIteration as error:
                raise OutOfRangeError(
                    operation.node_def, operation, f"{operation.node_def}: the input has ended."
                ) from error
            except Exception as error:
                operation.note(error)
                raise


def _is_large(constant: Constant) -> bool:
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(constant.value)) > _LARGE_CONSTANT_BYTES
