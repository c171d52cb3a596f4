"""The cached step: the work of a run, planned once for a request and repeated as often as the request comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import FailedPreconditionError
from hookline.graph import placement
from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Operation, Tensor, ancestors
from hookline.graph.nodes.nodes import Constant, Source
from hookline.graph.variable import Update, Variable, is_counter
from hookline.session.local_store import Flat, Slot
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan.feeds import feeder
from hookline.session.plan.fetches import called
from hookline.session.plan.getters import DeferredResults, Getter, Run, counters, fetch_getter, input_getter
from hookline.session.plan.plan import Plan, input_tensors
from hookline.session.plan.request import HookPart, Request
from hookline.session.plan.source_positions import NOT_READY, OpenSource, feed
from hookline.session.program.program_cache import ProgramCache
from hookline.session.program.shared_jit import OtherTypesError
from hookline.session.running.host_stage import HostStage

CHANGED = object()
"""Returned in place of results: the global step is not the expected one; nothing was run."""


class CachedStep:
    """Everything that a run needs: its plan, its host stages, its program, and the places of its values.

    `run` makes a run that consists of a program and batches (`is_program`). For any other run the session makes the
    stages around the program (`run_staged`), and `dispatch` starts the program.

    Args:
        session: The engine that makes the runs.
        request: The elements that the run is asked for.
        programs: The programs of the session.

    Attributes:
        request: As above.
        plan: The plan.
        hosts: Its host operations.
        capacity: The largest number of steps that its program makes.
        counters: The counters whose values the run needs from the host.
        gain: The number by which it advances the global step; None if only the device knows.
        has_checks: Whether one of its operations has a check.
        writes: Whether it changes a variable.
        exchanges: Whether it reads or updates variables that live elsewhere.
        is_program: Whether it consists of a program alone, on variables in this process and batches.
    """

    def __init__(self, session: Any, request: Request, programs: ProgramCache) -> None:
        self.request, fetched, capacity = request, request.fetched, request.capacity
        for_hooks, deferred = request.of_hooks(is_late=False), request.of_hooks(is_late=True)
        store = session.store
        self._session, self._store, self._lock = session, store, session.lock
        global_step = counted_global_step(session.graph)
        self.plan = plan = Plan(fetched, [*for_hooks, *deferred], request.fed, store.is_remote)
        self.capacity = capacity
        self._feeders = [feeder(tensor) for tensor in request.fed]
        self.program, self._mask = programs.choose(plan, request, store)
        places = self.program.places([bool(wanted) for wanted in self._mask]) if self.program else {}
        self.hosts = hosts = HostStage(plan, [*fetched, *for_hooks], deferred, places)
        self._now = [part for part in request.hooks if not part.is_late]
        self._late = [part for part in request.hooks if part.is_late]
        self._getters = [
            *[self._getter(element, places, in_rows=True) for element in fetched],
            *[self._getter(e, places, in_rows=part.in_rows) for part in self._now for e in part.elements],
        ]
        self._late_getters = [
            self._getter(e, places, in_rows=part.in_rows, is_late=True) for part in self._late for e in part.elements
        ]
        # The results of a run, if they are the same each time, and of a single step if no front end checks runs, too.
        self._constant: tuple[Any, Any] | None = None
        self._plain: tuple[Any, Any, int] | None = None
        self.counters = counters(plan, [*fetched, *for_hooks, *deferred])
        self.gain: int | None = 0 if global_step is None else plan.gain(global_step)
        program = self.program
        written = program.written if program else []
        hosted = program.hosted if program else []
        self.writes = bool(written or plan.remote)
        self.has_checks = program is not None and bool(program.checks)
        read = [v for v in self.counters if v is not global_step]
        if program is not None:
            read += [*program.counted, *program.read]
        self.exchanges = plan.exchanges(read)
        more = self.exchanges or plan.before or hosts.after or self.counters
        self.is_program = program is not None and (capacity > 1 or not more)
        self._is_bare = self.is_program and capacity == 1 and not plan.sources
        # Starts a run; the caller holds the session's lock.
        self._start: Callable[[Run, int | None], Any] = self.dispatch if self._is_bare else self._start_fed
        self._nodes: Sequence[Source] = plan.sources
        self._opened: Sequence[OpenSource] = ()
        self._after = hosts.after
        self.is_kept = True
        if program is None:
            return
        self._program = program
        computed = frozenset(program.plan.operations)
        # An initialiser is rarely asked for again, and would keep the initial values of a model on the device.
        initialises = any(isinstance(operation, Update) and operation.initialises for operation in plan.operations)
        constants: MutableMapping[Constant, Any] = {} if initialises else programs.constants
        self._inputs = [input_getter(plan, tensor, constants, computed) for tensor in program.inputs]
        self.is_kept = not (initialises and constants)
        self._latch_states = session.ahead.states(program.latches)
        # The results of a remote update are pulled only if they are fetched or needed.
        results = (*fetched, *for_hooks, *deferred, *input_tensors(plan.after, lambda tensor: True))
        self._pulled = [u for u in plan.remote if any(isinstance(t, Tensor) and t.op is u for t in results)]
        # The last global step from which a run can still count on, if it is counted here.
        self._last_step: int | None = None
        if global_step is not None and self.gain and global_step in (*written, *hosted):
            self._last_step = int(np.iinfo(global_step.dtype).max) - self.gain
        self._remote = plan.remote
        self._least: int | None = None
        self._find_places(global_step)
        # As far as it is known before the run.
        self._gain = None if plan.remote and self._step_slot is None else self.gain

    def _find_places(self, global_step: Variable | None) -> None:
        """Finds the places of the values that the program reads, writes and counts."""
        program, plan = self._program, self.plan
        self._here = here = self._store.here
        self._block = here.block(*program.groups, program.hosted)
        # That of a variable that lives elsewhere stays empty: then all are gathered by way of the store.
        self._read: list[tuple[Slot, Variable]] = [*zip(here.slots(program.read), program.read, strict=True)]
        self._counts: list[tuple[Slot, Variable, int | None]] = []
        self._step_slot: Slot | None = None
        counting = [variable for variable in (*program.written, *program.hosted) if is_counter(variable)]
        for slot, variable in zip(here.slots(counting), counting, strict=True):
            if variable is global_step:
                self._step_slot = slot
            else:
                self._counts.append((slot, variable, None if plan.is_guarded(variable) else plan.gain(variable)))

    def _getter(
        self, element: Tensor | Operation, places: Mapping[Any, int], *, in_rows: bool, is_late: bool = False
    ) -> Getter:
        """Returns the getter of an element, which of several steps finds the values of each `in_rows`."""
        return fetch_getter(self.plan, element, places)

    # Running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        values: Iterable[Any] | None = None,
        expected: int | None = None,
        following: float = 0,
        *,
        most: int = 0,
        exactly: bool = False,
    ) -> Any:
        """Makes a run that `is_program`, of one step, or of as many as batches of one form are ready.

        Args:
            values: The fed values, in the order of the plan.
            expected: The global step at which it must start; None for any.
            following: The number of steps that the following runs take, as far as it is known.
            most: The largest number of steps; by default `capacity`.
            exactly: Whether `most` steps are required: with fewer batches nothing is run.

        Returns:
            The results of the caller, those of the hooks, and the number of steps; or `CHANGED`.
        """
        session, run = self._session, Run()
        run.feeds = [*map(called, self._feeders, values)] if values else ()
        try:
            if not self._is_bare:
                run.begin()
                run.most = most or self.capacity
                run.least = run.most if exactly else 1
            while True:
                with self._lock:
                    if not session.usable:
                        session.check_usable()
                    made = self._start(run, expected)
                if made is not NOT_READY:
                    break
                self._await_batches(run.most, run.most + following)
            if made is CHANGED:
                return CHANGED
            ahead = session.ahead
            ahead.left -= made if made == 1 else min(made, ahead.heaviest)
            if ahead.left <= 0:
                ahead.look(self, run)
            if self._after:
                self.hosts.compute(self._after, run, session)
        except MemoryError as error:
            if self.capacity > 1:
                error.add_note(
                    f"hookline: steps_per_run={self.capacity} has so many batches read at once. Choose less."
                )
            raise
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return self._plain if made == 1 and self._plain else (*self.results(run), made)

    def _start_fed(self, run: Run, expected: int | None) -> Any:
        """Starts a run with a batch of each source."""
        return feed(self._nodes, self._opened or self._open(), run, self.dispatch, run, expected)

    def _open(self) -> Sequence[OpenSource]:
        self._opened = self._session.sources.opened(self._nodes)
        return self._opened

    def _await_batches(self, most: int, to_come: float) -> None:
        """Waits for a batch of each source; not under the lock, because it may take long. See `OpenSource.wait`."""
        for source in self._opened:
            if not source.ready(most):
                source.wait(most, self.capacity, to_come)

    def run_staged(
        self,
        values: Iterable[Any] | None = None,
        options: RunOptions | None = None,
        metadata: RunMetadata | None = None,
    ) -> tuple[Any, Any]:
        """Makes any run, with the stages around its program."""
        session, run = self._session, Run()
        run.feeds = [*map(called, self._feeders, values)] if values else ()
        run.applied, run.outputs, run.options, run.metadata = False, (), options, metadata
        try:
            session.staged.make(self, run)
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return self.results(run)

    def results(self, run: Run) -> tuple[Any, Any]:
        """Returns the results of a run, the caller's and the hooks'."""
        session = self._session
        if session.checks_runs:
            session.graph.front_end.check_run(session.graph)
        if self._constant is not None:
            return self._constant
        request = self.request
        values = [*map(called, self._getters, repeat(run))]
        if session.converts and not request.is_constant:
            values = session.graph.front_end.convert_results(values)
            if self.has_checks:
                session.ahead.raise_known_failure()
        results: list[Any] = [None] * request.hook_count
        end = len(request.fetched)
        for part in self._now:
            start, end = end, end + len(part.elements)
            results[part.place] = part.assemble(values[start:end])
        if self._late:
            hosts, late, start = self.hosts, [], 0
            arrays = [*map(run.outputs.__getitem__, hosts.deferred_arrays)]
            if hosts.deferred_trees:
                arrays += jax.tree.leaves([run.outputs[place] for place in hosts.deferred_trees])
            for part in self._late:
                results[part.place] = DeferredResults(partial(self._late_results, run, late, part, start), arrays)
                start += len(part.elements)
        found = request.assemble(values), tuple(results)
        if request.is_constant:
            self._constant, self._plain = found, None if session.checks_runs else (*found, 1)
        return found

    def _late_results(self, run: Run, values: list[Any], part: HookPart, start: int) -> Any:
        """Returns the results of a late hook; the first one that is read computes the `values` of all late hooks."""
        if not values:
            hosts = self.hosts
            if hosts.deferred:
                if self._is_bare:  # The run has made no room for host results.
                    run.begin()
                hosts.compute(hosts.deferred, run, self._session)
            values.extend([*map(called, self._late_getters, repeat(run))])
        return part.assemble(values[start : start + len(part.elements)])

    def dispatch(self, run: Run, expected: int | None = None, last_step: int | None = None) -> Any:
        """Starts the program and keeps its new values, without waiting for it. The caller holds the session's lock.

        Args:
            run: The run. Its outputs, and whether its updates were applied, are noted in it.
            expected: As in `run`.
            last_step: As in `RunOptions`.

        Returns:
            The number of steps; or `CHANGED` if nothing was run.
        """
        count = 1 if self.capacity == 1 else run.count
        program, block, slot, latches = self._program, self._block, self._step_slot, self._latch_states
        try:
            # The global step.
            step = self._store.known_step() if slot is None else slot.mirror
            if expected is not None and step != expected:
                return CHANGED
            if self._last_step is not None and (step is None or step > self._last_step):
                step = self._countable_step(self._last_step)
            # If the variables were not written since, the values are those that the last run left.
            if block.groups is not None:
                taken, counted, _ = block.groups
                try:
                    read = [at.leaves or at.values(variable) for at, variable in self._read] if self._read else []
                except KeyError:  # A variable has no value.
                    taken, counted, read = self._gathered()
            else:
                taken, counted, read = self._gathered()
            # The inputs and the latches.
            inputs = [get(run) for get in self._inputs] if self._inputs else ()
            latched = tuple([state.value for state in latches]) if latches else ()
            given, gain = (taken, counted, read, inputs, latched, self._mask), self._gain
            if self.capacity > 1:
                given = (*given, self._span(run))
            if last_step is None and not self._remote:
                try:
                    made = program.run(*given)
                except OtherTypesError:
                    made = None  # The errors of the next line have no such context.
                new, run.outputs, _, latched = made or program.retry(*given)
                run.applied = True
            else:
                new, run.outputs, latched = self._tried(run, last_step, given)
                if gain and not run.applied:
                    gain = 0
            # If a Ctrl-C comes from here on, donated values are lost, and the session with them.
            led = None if step is None or gain is None else step + gain * count
            if latches and led is not None:
                # Not `zip`: with `strict` it takes longer than all the rest of this.
                for number, state in enumerate(latches):
                    state.put(latched[number], led, count, gain)
            if run.applied:
                for at, variable, each in self._counts:
                    at.count(variable, each if each is None else each * count)
                if slot is not None:
                    slot.mirror = led
                    self._here.stepped()
                if block.groups is None:
                    self._put_together(new)
                else:
                    block.structures = program.structures_out
                    block.groups = new
            if latches and led is None:  # Only the device knows the global step after the run.
                led = self._session.step_or_none()
                for number, state in enumerate(latches):
                    state.put(latched[number], led, count)
            if self.writes:
                self._session.writes += 1
            if program.compilations.untold:
                program.compilations.end()
        except Exception as error:
            self._session.explain(error, self, run.feeds)
            raise
        return count

    def _span(self, run: Run) -> np.ndarray:
        """Returns the further argument of a program of several steps: their number, and the places of their batches."""
        places = [run.starts[tensor.op] for tensor in self._program.inputs if isinstance(tensor.op, Source)]
        return np.array([run.count, *places], np.int32)

    def _tried(self, run: Run, last_step: int | None, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Starts a run that may be refused, by `last_step` or by the parameter servers; see `dispatch`."""
        program, store, remote = self._program, self._store, self._remote
        is_held_back = last_step is not None and not remote and self.gain != 0 and store.step() >= last_step
        # A dry run donates no values.
        start = program.dry if is_held_back or (remote and program.written) else program.retry
        new, run.outputs, sent, latched = start(*given)
        run.applied = not is_held_back
        if remote:
            values = [list(values) for values in jax.device_get(sent)]
            run.applied = store.submit(list(zip(remote, values, strict=True)), last_step)
        return new, run.outputs, latched

    def _gathered(self) -> tuple[Any, Any, Any]:
        """Gathers the values that the program takes from their places."""
        program, store = self._program, self._store
        try:
            for variable in program.hosted:
                store.counter(variable)
            taken, counted, read = [[*store.take(group)] for group in (program.taken, program.counted, program.read)]
        except FailedPreconditionError as error:
            raise explained(self.plan, error) from None
        return taken, counted, read

    def _put_together(self, new: tuple[Flat, Flat, Flat]) -> None:
        """Keeps the new values of a run as a block, if they were in separate slots before."""
        self._block.take_over(new, self._program.structures_out)
        if not self.is_kept:  # The variables have the values now.
            for tensor in self._program.inputs:
                if isinstance(tensor.op, Constant):
                    tensor.op.leave_device()

    def _countable_step(self, last_step: int) -> int:
        """Returns the global step.

        Raises:
            FailedPreconditionError: A run from there would exceed the dtype.
        """
        step = self._store.step()
        if step <= last_step:
            return step
        variable = next(v for v in self.plan.updates if v is counted_global_step(v.graph))
        raise FailedPreconditionError(
            variable.op.node_def,
            variable.op,
            f"The global step {variable.op.name!r} cannot count to {step + (self.gain or 0)}: its dtype is "
            f"{variable.dtype}. Set jax_enable_x64 before the graph is built; it is then one of int64, also when this "
            f"model is restored.",
        )

    # Around a program -------------------------------------------------------------------------------------------

    def dispatch_with(self, run: Run) -> None:
        """Does the same as `dispatch` for a staged run, which may have no program, and serves its options."""
        program, options, metadata = self.program, run.options, run.metadata
        if program is None:
            run.applied = True
            return
        last_step = None if options is None else options.last_step
        if options is not None and options.output_partition_graphs and metadata is not None:
            inputs, latched = [get(run) for get in self._inputs], tuple([state.value for state in self._latch_states])
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

    def token(self, run: Run) -> jax.Array | None:
        """Returns an array that is ready once a run is computed and that no later run donates, or None."""
        program = self.program
        if program is None:
            return None
        # Of an array that is split over processes, this one's part: it is ready when the run is computed, too.
        held = jax.tree.leaves(run.outputs)
        if not held and program.counted:
            held = jax.tree.leaves(self._store.take(program.counted[:1]))
        if held:
            return placement.here(min(held, key=lambda leaf: leaf.size))
        if self._latch_states:
            return placement.here(self._latch_states[0].value)
        held = jax.tree.leaves(self._store.take(program.written))
        if not held:
            return None
        if self._least is None:  # The sizes are those of the first run, or near them.
            self._least = min(range(len(held)), key=lambda place: held[place].size)
        return _copied(placement.here(held[min(self._least, len(held) - 1)]))


_copied = jax.jit(jnp.copy)  # Much faster than `jnp.copy` alone.


def explained(plan: Plan, error: FailedPreconditionError) -> FailedPreconditionError:
    """Returns the error of a variable without a value, with other advice if an initial value reads that variable."""
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
