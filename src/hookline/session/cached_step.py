"""The cached step: what a run does, decided once for what is asked for, and made as often as that is asked again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import FailedPreconditionError
from hookline.graph import placement
from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Operation, Tensor, ancestors
from hookline.graph.nodes import Constant, Source
from hookline.graph.variable import Update, Variable, is_counter
from hookline.session.feeds import feeder
from hookline.session.fetches import called
from hookline.session.getters import Getter, Run, counter, fetch_getter, input_getter
from hookline.session.host_stage import HostStage
from hookline.session.late import LateResults
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan import Plan, input_tensors
from hookline.session.programs import Programs, Request
from hookline.session.slots import Block, Slot
from hookline.session.sources import OpenSource, feed

T = TypeVar("T")

CHANGED = object()
"""In place of results: nothing was run, for the global step is not where it was expected."""

_value = operator.attrgetter("value")


class CachedStep:
    """All that a run needs: its plan, its host stages, its program, and where values come from and go to.

    `run` makes a run that is nothing but a program (`is_program`). Of any other the session makes the stages around the
    program, and `dispatch` starts it.

    Args:
        session: The engine that makes the runs.
        request: What is asked for.
        programs: The programs of the session.
        answer: Puts the values of a run's getters, the caller's and the hooks', into what they are returned as.
        nothing: What is returned, if nothing that is asked for has a value; else None.
        has_structures: Whether a key of the feeds is a structure of tensors.
        capacity: How many steps its program makes at most.

    Attributes:
        plan: The plan.
        hosts: Its host operations.
        capacity: As above.
        fed_tensors: The tensors that are fed.
        has_structures: Whether a key of the feeds is a structure of tensors.
        counters: The counters whose value the run needs from the host.
        gain: By how much it advances the global step; None if only the device knows.
        has_faults: Whether one of its operations can have a fault.
        writes: Whether it changes a variable.
        exchanges: Whether it has to do with variables that live elsewhere.
        is_program: Whether it is nothing but a program, of variables that live here, and of batches.
    """

    def __init__(
        self,
        session: Any,
        request: Request,
        programs: Programs,
        answer: Callable[[Sequence[Any], Run], tuple[Any, Any]],
        nothing: tuple[None, Any] | None,
        *,
        has_structures: bool,
        capacity: int = 1,
    ) -> None:
        self._request, fetched = request, request.fetched
        watched, late = [*request.watched, *request.rows], [*request.late, *request.late_rows]
        store = session.store
        self._session, self._store, self._local, self._lock = session, store, store.local, session.lock
        global_step = counted_global_step(session.graph)
        self.plan = plan = Plan(fetched, [*watched, *late], request.fed, store.is_remote)
        self.hosts = hosts = HostStage(plan, [*fetched, *watched], late)
        self.capacity = capacity
        self.fed_tensors = request.fed
        self.has_structures = has_structures
        self._feeders = [feeder(tensor) for tensor in request.fed]
        self.program, self._mask = programs.choose(plan, request, hosts.pulled, store, capacity)
        places = self.program.places([bool(wanted) for wanted in self._mask]) if self.program else {}
        hosts.find_outputs(places)
        self._getters, self._late_getters = self._found_getters(request, places)
        self._answer, self._nothing = answer, nothing
        self.counters = _counters(plan, [*fetched, *watched, *late])
        self.gain: int | None = 0 if global_step is None else plan.gain(global_step)
        program = self.program
        written = program.written if program else []
        hosted = program.hosted if program else []
        self.writes = bool(written or plan.remote)
        self.has_faults = program is not None and bool(program.faults)
        read = [v for v in self.counters if v is not global_step]
        if program is not None:
            read += [*program.counted, *program.read]
        self.exchanges = bool(plan.remote) or any(store.is_remote(variable) for variable in read)
        more = self.exchanges or plan.early or hosts.after or self.counters
        self.is_program = program is not None and not more
        self._is_split = store.home is not None and not store.home.is_fully_addressable
        self._is_bare = self.is_program and capacity == 1 and not plan.sources
        self._nodes: Sequence[Source] = plan.sources
        self._opened: Sequence[OpenSource] = ()
        self.is_kept = True
        if program is None:
            return
        computed = frozenset(program.plan.operations)
        # What only initialises is hardly asked for again, and would hold the initial values of a model on the device.
        initialises = any(isinstance(operation, Update) and operation.initialises for operation in plan.operations)
        constants: MutableMapping[Constant, Any] = {} if initialises else programs.constants
        self._inputs = [input_getter(plan, tensor, constants, computed) for tensor in program.inputs]
        self.is_kept = not (initialises and constants)
        self._states = session.ahead.latches.of(program.latches)
        # What a remote update made of its variables is asked for only where somebody wants it.
        results = (*fetched, *watched, *late, *input_tensors(plan.late, lambda tensor: True))
        self._pulled = [u for u in plan.remote if any(isinstance(t, Tensor) and t.op is u for t in results)]
        self._gains = [None if plan.is_guarded(v) or not plan.is_host_known(v) else plan.gain(v) for v in written]
        # The last global step from which a run can still count on, where that is counted here.
        self._last_step: int | None = None
        if global_step is not None and self.gain and global_step in (*written, *hosted):
            self._last_step = int(np.iinfo(global_step.dtype).max) - self.gain
        # Known when the values that a first run has left are kept.
        self._block: Block | None = None
        self._read: list[tuple[Slot, Variable]] = []
        self._counts: list[tuple[Slot, Variable, int | None]] = []
        self._step_slot: Slot | None = None
        self._least: int | None = None

    def _found_getters(self, request: Request, places: Mapping[Any, int]) -> tuple[list[Getter], list[Getter]]:
        """Returns what finds the values that are there after the run, and those that come late."""
        return (
            [fetch_getter(self.plan, element, places) for element in (*request.fetched, *request.watched)],
            [fetch_getter(self.plan, element, places) for element in request.late],
        )

    # Running ----------------------------------------------------------------------------------------------------

    def run(self, values: Iterable[Any] = (), expected: int | None = None) -> Any:
        """Makes the run, where that `is_program`.

        Args:
            values: What is fed, in the order of the plan.
            expected: The global step from which it is to start; None for any.

        Returns:
            The results of the caller, and those of the hooks; or `CHANGED`.
        """
        session, run, nodes = self._session, Run(), self._nodes
        run.feeds = [*map(called, self._feeders, values)] if values else ()
        try:
            if nodes:
                run.begin()
                dispatch = lambda _: self.dispatch(run, expected)  # noqa: E731
                made = self.when_available(lambda _: feed(nodes, self._opened, run, dispatch))
            else:
                with self._lock:
                    if not session.usable:
                        session.check_usable()
                    made = self.dispatch(run, expected)
            if made is CHANGED:
                return CHANGED
            ahead = session.ahead
            ahead.left -= 1
            if ahead.left <= 0:
                ahead.look(self, run)
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return self._nothing if self._nothing is not None and not session.checks_runs else self.results(run)

    def when_available(self, make: Callable[[int], T], most: int = 1) -> T:
        """Waits for batches, and then calls a function with the session locked.

        Args:
            make: It is given for how many steps there are batches, each of one form: from 1 to `most`.
            most: As above.
        """
        session = self._session
        while True:
            with self._lock:
                if not session.usable:
                    session.check_usable()
                sources = self._opened
                if not sources:
                    sources = self._opened = session.staged.sources.opened(self._nodes)
                count = most
                for source in sources:
                    count = min(count, source.ready(most))
                if count:
                    return make(count)
            for source in sources:  # Not under the lock: a batch may take its time.
                if not source.ready(most):
                    source.wait(most, self.capacity)

    def new_run(self, values: Iterable[Any]) -> Run:
        """Returns a run that is fed these values, once they are checked."""
        run = Run()
        run.feeds = [*map(called, self._feeders, values)] if values else ()
        run.applied, run.outputs = False, ()
        return run

    def results(self, run: Run) -> tuple[Any, Any]:
        """Returns the results of a run, the caller's and the hooks'."""
        session = self._session
        if session.checks_runs:
            session.graph.dialect.check_run(session.graph)
        if self._nothing is not None:
            return self._nothing
        values = [*map(called, self._getters, repeat(run))]
        if session.converts:
            values = session.graph.dialect.returned(values)
            if self.has_faults:
                session.ahead.raise_known_fault()
        return self._answer(values, run)

    def dispatch(
        self, run: Run, expected: int | None = None, last_step: int | None = None, count: int = 1, span: Any = ()
    ) -> Any:
        """Starts the program, and keeps what it leaves, without waiting for it. The caller holds the session's lock.

        Args:
            run: The run. It gets to know its outputs, and whether its updates were applied.
            expected: As of `run`.
            last_step: As of `RunOptions`.
            count: How many steps it makes.
            span: What the program is told of that, where it makes several.

        Returns:
            `CHANGED` if nothing was run.
        """
        program, store, states, remote = self.program, self._store, self._states, self.plan.remote
        assert program is not None
        try:
            # Where the step is.
            step = store.known_step() if self._step_slot is None else self._step_slot.mirror
            if expected is not None and step != expected:
                return CHANGED
            if self._last_step is not None and (step is None or step > self._last_step):
                self._check_countable(self._last_step)
            is_held_back = last_step is not None and not remote and self.gain != 0 and store.step() >= last_step
            # Who has written since: if nobody has, the values are those that the last run left.
            block = self._block
            if block is not None and block.groups is not None:
                taken, counted, _ = block.groups
                read = [slot.leaves or slot.values(variable) for slot, variable in self._read] if self._read else []
            else:
                taken, counted, read = self._gathered()
            # What is fed, and which latches there are.
            inputs = [get(run) for get in self._inputs] if self._inputs else ()
            latched = tuple(map(_value, states)) if states else ()
            # What may come to nothing gives no values away.
            start = program.dry if is_held_back or (remote and program.written) else program.run
            new, outputs, sent, latched = start(taken, counted, read, inputs, latched, self._mask, *span)
            run.outputs = jax.tree.map(placement.here, outputs) if self._is_split else outputs
            run.applied = not is_held_back
            if remote:
                given = [list(values) for values in jax.device_get(sent)]
                run.applied = store.submit(list(zip(remote, given, strict=True)), last_step)
            # Where a Ctrl-C comes from here on, values that were given away are gone, and the session with them.
            gain = self.gain if run.applied else 0
            if step is not None and gain is not None and not remote:
                step += gain * count
                for state, value in zip(states, latched, strict=True):
                    state.put(value, step, count, gain)
                states = ()
            if run.applied and self._local is None:
                store.put(zip(program.written, chain(*new), program.structures_out, self._gains, strict=True))
            elif run.applied:
                block = self._block or self._found_block()
                for slot, variable, gain in self._counts:
                    slot.count(variable, gain if gain is None else gain * count)
                if block.groups is None:
                    block.take_over(new, program.structures_out)
                else:
                    block.structures = program.structures_out
                    block.groups = new
                if self._step_slot is not None:
                    self._local.stepped()
            if states:  # Only the device knows where the run has led.
                step = self._session.step_or_none()
                for state, value in zip(states, latched, strict=True):
                    state.put(value, step, count)
            if self.writes:
                self._session.writes += 1
            if program.compilations.untold:
                program.compilations.end()
        except Exception as error:
            self._session.explain(error, self, run.feeds)
            raise

    def _gathered(self) -> tuple[Any, Any, Any]:
        """Returns the values that the program takes, wherever they are."""
        program, store = self.program, self._store
        assert program is not None
        try:
            for variable in program.hosted:
                store.counter(variable)
            taken, counted, read = [[*store.take(group)] for group in (program.taken, program.counted, program.read)]
        except FailedPreconditionError as error:
            raise explained(self.plan, error) from None
        return taken, counted, read

    def _found_block(self) -> Block:
        """Finds where the variables are, which all have values now."""
        program, local = self.program, self._local
        assert program is not None
        alone = program.written[len(program.taken) + len(program.counted) :]
        gains: Mapping[Variable, int | None] = {
            **dict(zip(program.written, self._gains, strict=True)),
            **{variable: self.plan.gain(variable) for variable in program.hosted},
        }
        counting = [variable for variable in gains if is_counter(variable)]
        self._counts = [(s, v, gains[v]) for s, v in zip(local.slots(counting), counting, strict=True)]
        step = counted_global_step(self._session.graph)
        self._step_slot = local.slots([step])[0] if step in counting else None
        self._read = [*zip(local.slots(program.read), program.read, strict=True)]
        self._block = found = local.block(program.taken, program.counted, alone, program.hosted)
        if not self.is_kept:  # The variables have the values now.
            for tensor in program.inputs:
                if isinstance(tensor.op, Constant):
                    tensor.op.leave_device()
        return found

    def _check_countable(self, last_step: int) -> None:
        step = self._store.step()
        if step <= last_step:
            return
        variable = next(v for v in self.plan.updates if v is counted_global_step(v.graph))
        raise FailedPreconditionError(
            variable.op.node_def,
            variable.op,
            f"The global step {variable.op.name!r} cannot count to {step + (self.gain or 0)}: its dtype is "
            f"{variable.dtype}. Set jax_enable_x64 before the graph is built; it is then one of int64, also when this "
            f"model is restored.",
        )

    # Around a program -------------------------------------------------------------------------------------------

    def dispatch_with(self, run: Run, options: RunOptions | None, metadata: RunMetadata | None) -> None:
        """Does what `dispatch` does for a run with more around it than a program."""
        program = self.program
        if program is None:
            run.applied = True
            return
        last_step = None if options is None else options.last_step
        if options is not None and options.output_partition_graphs and metadata is not None:
            inputs, latched = [get(run) for get in self._inputs], tuple(map(_value, self._states))
            lowered = program.lower(*self._gathered(), inputs, latched, self._mask)
            metadata.partition_graphs.append(str(lowered.compile().as_text()))
        self.dispatch(run, last_step=last_step)
        for update in self._pulled:
            run.hosts[update] = self._result(update)
        if metadata is not None and (self.plan.remote or not run.applied):
            metadata.applied = run.applied
        if options is not None and options.trace_level and metadata is not None:
            jax.block_until_ready((self._store.take(program.written), run.outputs))

    def _result(self, update: Update) -> Any:
        """Returns the values that the variables of an update have now, in its structure."""
        leaves, structure = self._store.take(update.variables), self._store.structure
        pairs = zip(update.variables, leaves, strict=True)
        return jax.tree.unflatten(update.structure, [jax.tree.unflatten(structure(v), taken) for v, taken in pairs])

    def late_results(self, run: Run, assemble: Callable[[Sequence[Any]], Any]) -> LateResults:
        """Returns the results that the run has not waited for."""
        if self._is_bare:  # It has made no room for what the host computes.
            run.begin()
        results = lambda: assemble([*map(called, self._late_getters, repeat(run))])  # noqa: E731
        return self.hosts.late_results(run, self._session, results)

    def token(self, run: Run) -> jax.Array | None:
        """Returns an array that is there once a run is computed, and that no later run takes; None of no program."""
        program = self.program
        if program is None:
            return None
        # Of what several processes have split, the part of this one: it is there when the run is computed, too.
        held = jax.tree.leaves(run.outputs)
        if not held and program.counted:
            held = jax.tree.leaves(self._store.take(program.counted[:1]))
        if held:
            return placement.here(min(held, key=lambda leaf: leaf.size))
        if self._states:
            return placement.here(self._states[0].value)
        held = jax.tree.leaves(self._store.take(program.written))
        if not held:
            return None
        if self._least is None:  # The sizes are those of the first run, or near them.
            self._least = min(range(len(held)), key=lambda place: held[place].size)
        return _copied(placement.here(held[min(self._least, len(held) - 1)]))


_copied = jax.jit(jnp.copy)  # Much faster than `jnp.copy` alone.


def explained(plan: Plan, error: FailedPreconditionError) -> FailedPreconditionError:
    """Returns the error of a variable without a value, with other advice if it is a variable's initial value's."""
    for operation in plan.operations:
        if isinstance(operation, Update) and operation.initialises and error.op in ancestors(operation.inputs):
            name = error.op.name
            return FailedPreconditionError(
                operation.node_def,
                operation,
                f"The initial value of {operation.variables[0].op.name!r} reads variable {name!r}, which has no value "
                f"before this run is over. Compute it from the initial value, `{name}.initialized_value()` in place of "
                f"`{name}`, or initialise {name!r} in an earlier run.",
            )
    return error


def _counters(plan: Plan, elements: Iterable[Tensor | Operation]) -> list[Variable]:
    """Returns the counters whose value some result or host operation needs."""
    arguments = input_tensors((*plan.early, *plan.late), lambda tensor: True)
    tensors = [*arguments, *(element for element in elements if isinstance(element, Tensor))]
    found = (counter(plan, tensor) for tensor in tensors)
    return list(dict.fromkeys(variable for variable in found if variable is not None))
