"""CachedStep: plans a request (fetches and feeds) once, and executes each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.coordination import progress
from hookline.errors import FailedPreconditionError
from hookline.graph import placement
from hookline.graph.global_step import find_global_step
from hookline.graph.graph import Operation, Tensor, ancestors
from hookline.graph.nodes.nodes import Constant, Source
from hookline.graph.variable import Update, Variable, is_counter
from hookline.session.local_store import FlatValues, VariableBuffer
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan.feeds import make_feed_converter
from hookline.session.plan.fetches import call_with
from hookline.session.plan.plan import Plan, input_tensors
from hookline.session.plan.request import HookRequest, Request
from hookline.session.plan.result_readers import (
    DeferredResults,
    ResultReader,
    RunState,
    host_counters,
    make_fetch_reader,
    make_input_reader,
)
from hookline.session.plan.source_positions import BATCH_NOT_READY, OpenSource, run_with_batches
from hookline.session.program.program_cache import ProgramCache
from hookline.session.program.shared_jit import OtherTypesError
from hookline.session.running.host_stage import HostStage

STEP_MISMATCH = object()
"""Returned in place of results: the global step is not the expected one; nothing was run."""


class CachedStep:
    """Plans a request (fetches and feeds) once, and executes each of its runs.

    It holds the plan, host operations, program, and buffers of variables. If a run needs only one program, variables of
    this process and batches (`is_program`), call `run`; otherwise `run_staged`, which also executes the stages before
    and after the program: host operations, and updates of remote variables.

    Args:
        session: The session's backend, which holds its store, lock and throttle.
        request: The fetches of the caller and of hooks, and the fed tensors.
        programs: The programs of the session.

    Attributes:
        request: As above.
        plan: The plan of the request.
        host_stage: The host operations of the plan.
        max_steps: The largest number of steps of one run.
        counters: The variables, such as the global step, whose values the host knows because each run increments them
            by a known number, and that fetches or host operations read.
        step_delta: The increase of the global step in one step; None if only the device knows it.
        has_checks: Whether an operation of the program has an input check (`hookline.extend.Check`), whose failure is
            raised later.
        has_writes: Whether a run writes variables.
        uses_remote_variables: Whether a run reads or updates remote variables.
        is_program: Whether a run needs only one program, variables of this process and batches.
        is_cacheable: Whether the step may be kept for later requests. An initializer with large constants is not kept.
    """

    def __init__(self, session: Any, request: Request, programs: ProgramCache) -> None:
        self.request, fetched, max_steps = request, request.fetched, request.max_steps
        for_hooks, deferred = request.hook_elements(is_deferred=False), request.hook_elements(is_deferred=True)
        store = session.store
        self._session, self._store, self._lock = session, store, session.lock
        global_step = find_global_step(session.graph)
        self.plan = plan = Plan(fetched, [*for_hooks, *deferred], request.fed, store.is_remote)
        self.max_steps = max_steps
        self._feed_converters = [make_feed_converter(tensor) for tensor in request.fed]
        # The mask, an argument of the program, selects the fetches of hooks that a run computes.
        self.program, self._mask = programs.choose(plan, request, store)
        indices = self.program.output_indices([bool(wanted) for wanted in self._mask]) if self.program else {}
        self.host_stage = host_stage = HostStage(plan, [*fetched, *for_hooks], deferred, indices)
        self._immediate = [part for part in request.hooks if not part.is_deferred]
        self._deferred = [part for part in request.hooks if part.is_deferred]
        self._readers = [
            *[self._make_reader(element, indices, is_stacked=True) for element in fetched],
            *[
                self._make_reader(e, indices, is_stacked=part.is_stacked)
                for part in self._immediate
                for e in part.elements
            ],
        ]
        self._deferred_readers = [
            self._make_reader(e, indices, is_stacked=part.is_stacked, is_deferred=True)
            for part in self._deferred
            for e in part.elements
        ]
        # If all runs have the same results (`request.is_constant`), those of the first are kept: `results` returns
        # `_constant`, and `run` returns `_constant_run`, which also has the number of steps, 1. The latter stays None
        # if a front end (another API on hookline) must be called after each run.
        self._constant: tuple[Any, Any] | None = None
        self._constant_run: tuple[Any, Any, int] | None = None
        self.counters = host_counters(plan, [*fetched, *for_hooks, *deferred])
        self.step_delta: int | None = 0 if global_step is None else plan.counter_delta(global_step)
        program = self.program
        # `program.counters` are arguments of the program, `program.host_counters` are incremented on the host alone.
        written = program.written if program else []
        counted_by_host = program.host_counters if program else []
        self.has_writes = bool(written or plan.remote_updates)
        self.has_checks = program is not None and bool(program.checks)
        read = [v for v in self.counters if v is not global_step]
        if program is not None:
            read += [*program.counters, *program.read_only]
        self.uses_remote_variables = plan.uses_remote_variables(read)
        # For a program of several steps, `RepeatedStep.check` and `computes_hook_fetches` decide this.
        needs_host = self.uses_remote_variables or plan.before or host_stage.after or self.counters
        self.is_program = program is not None and (max_steps > 1 or not needs_host)
        self._is_bare_program = self.is_program and max_steps == 1 and not plan.sources
        # Starts a run; the caller holds the session's lock.
        self._start: Callable[[RunState, int | None], Any] = (
            self.dispatch if self._is_bare_program else self._start_with_batches
        )
        self._source_nodes: Sequence[Source] = plan.sources
        self._open_sources: Sequence[OpenSource] = ()
        self._after = host_stage.after
        self.is_cacheable = True
        if program is None:
            return
        self._program = program
        computed = frozenset(program.plan.operations)
        # An initializer rarely runs again, and would keep the initial values of a model on the device.
        initialises = any(isinstance(operation, Update) and operation.is_initializer for operation in plan.operations)
        constants: MutableMapping[Constant, Any] = {} if initialises else programs.constants
        self._inputs = [make_input_reader(plan, tensor, constants, computed) for tensor in program.inputs]
        self.is_cacheable = not (initialises and constants)
        # A latch is a condition, such as a NaN, that the device records in each run; the throttle reads it at its
        # polls.
        self._latch_states = session.throttle.states(program.latches)
        # The results of a remote update are read only if they are fetched or needed.
        results = (*fetched, *for_hooks, *deferred, *input_tensors(plan.after, lambda tensor: True))
        self._fetched_remote = [
            u for u in plan.remote_updates if any(isinstance(t, Tensor) and t.op is u for t in results)
        ]
        # A run from a larger global step would exceed its dtype. None if runs do not count the global step.
        self._max_start_step: int | None = None
        if global_step is not None and self.step_delta and global_step in (*written, *counted_by_host):
            self._max_start_step = int(np.iinfo(global_step.dtype).max) - self.step_delta
        self._remote_updates = plan.remote_updates
        self._smallest_leaf: int | None = None
        self._bind_buffers(global_step)
        # The step delta if it is known before the run, else None.
        self._known_step_delta = None if plan.remote_updates and self._step_buffer is None else self.step_delta

    def _bind_buffers(self, global_step: Variable | None) -> None:
        """Finds the buffers of the counters and of the other variables that the program reads and writes."""
        program, plan = self._program, self.plan
        self._local_store = local_store = self._store.local
        # The bundle holds the values that the last run wrote, grouped as the program's arguments, so that the next run
        # passes them unchanged.
        self._bundle = local_store.bundle(*program.groups, program.host_counters)
        # The buffer of a remote variable stays empty: `dispatch` then reads all values from the store.
        self._read_only: list[tuple[VariableBuffer, Variable]] = [
            *zip(local_store.buffers(program.read_only), program.read_only, strict=True)
        ]
        # The increment of each counter in a step; None if only the device knows it, as when a guard may skip the
        # update.
        self._counter_updates: list[tuple[VariableBuffer, Variable, int | None]] = []
        self._step_buffer: VariableBuffer | None = None
        counting = [variable for variable in (*program.written, *program.host_counters) if is_counter(variable)]
        for buffer, variable in zip(local_store.buffers(counting), counting, strict=True):
            if variable is global_step:
                self._step_buffer = buffer
            else:
                self._counter_updates.append(
                    (buffer, variable, None if plan.is_guarded(variable) else plan.counter_delta(variable))
                )

    def _make_reader(
        self,
        element: Tensor | Operation,
        output_indices: Mapping[Any, int],
        *,
        is_stacked: bool,
        is_deferred: bool = False,
    ) -> ResultReader:
        """Returns the result reader of an element. `RepeatedStep` overrides it, and uses the other two arguments."""
        return make_fetch_reader(self.plan, element, output_indices)

    # Running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        values: Iterable[Any] | None = None,
        expected_step: int | None = None,
        following_steps: float = 0,
        *,
        max_steps: int = 0,
        exactly: bool = False,
    ) -> Any:
        """Executes a run; only for a request with `is_program`.

        The run has one step or, if several are allowed, as many as batches with equal shapes and dtypes are ready.

        Args:
            values: The fed values, in the order of `request.fed`.
            expected_step: The global step at which the run must start; None for any.
            following_steps: The number of steps that the runs after this one are expected to take, so that a source may
                read their batches too; 0 if unknown.
            max_steps: The largest number of steps of this run; 0 means the attribute `max_steps`.
            exactly: Whether the run must have `max_steps` steps: with fewer batches nothing is run.

        Returns:
            The results of the caller, the results of the hooks, and the number of steps. Or `STEP_MISMATCH` if nothing
            was run.
        """
        session, run = self._session, RunState()
        run.feeds = [*map(call_with, self._feed_converters, values)] if values else ()
        try:
            if not self._is_bare_program:
                run.reset()
                run.max_steps = max_steps or self.max_steps
                run.min_steps = run.max_steps if exactly else 1
            while True:
                with self._lock:
                    if not session.is_usable:
                        session.check_usable()
                    # The number of steps, `BATCH_NOT_READY` or `STEP_MISMATCH`.
                    made = self._start(run, expected_step)
                if made is not BATCH_NOT_READY:
                    break
                self._await_batches(run.max_steps, run.max_steps + following_steps)
            if made is STEP_MISMATCH:
                return STEP_MISMATCH
            throttle = session.throttle
            # Every few runs the throttle waits if the device is too far behind, and reads the latches.
            throttle.runs_until_poll -= made if made == 1 else min(made, throttle.max_run_cost)
            if throttle.runs_until_poll <= 0:
                throttle.poll(self, run)
            if self._after:
                self.host_stage.compute(self._after, run, session)
        except MemoryError as error:
            if self.max_steps > 1:
                error.add_note(
                    f"hookline: steps_per_run={self.max_steps} reads so many batches at once. Choose a smaller number."
                )
            raise
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return self._constant_run if made == 1 and self._constant_run else (*self.results(run), made)

    def _start_with_batches(self, run: RunState, expected_step: int | None) -> Any:
        """Starts a run with a batch of each source."""
        return run_with_batches(
            self._source_nodes, self._open_sources or self._open_all(), run, self.dispatch, run, expected_step
        )

    def _open_all(self) -> Sequence[OpenSource]:
        self._open_sources = self._session.sources.open_all(self._source_nodes)
        return self._open_sources

    def _await_batches(self, max_count: int, upcoming_steps: float) -> None:
        """Waits for a batch of each source, as in `OpenSource.wait`. Without the lock, because the wait may be long."""
        for source in self._open_sources:
            if not source.num_ready(max_count):
                with self._session.session.activity.during("data", "waited for data"):
                    source.wait(max_count, self.max_steps, upcoming_steps)

    def run_staged(
        self,
        values: Iterable[Any] | None = None,
        options: RunOptions | None = None,
        metadata: RunMetadata | None = None,
    ) -> tuple[Any, Any]:
        """Executes any run, with the stages before and after its program."""
        session, run = self._session, RunState()
        run.feeds = [*map(call_with, self._feed_converters, values)] if values else ()
        run.applied, run.outputs, run.options, run.metadata = False, (), options, metadata
        try:
            session.staged.run(self, run)
        except jax.errors.JaxRuntimeError as error:
            raise session.map_error(error) from error
        return self.results(run)

    def results(self, run: RunState) -> tuple[Any, Any]:
        """Returns the results of the caller and of the hooks."""
        session = self._session
        if session.checks_runs:
            session.graph.front_end.check_run(session.graph)
        if self._constant is not None:
            return self._constant
        request = self.request
        values = [*map(call_with, self._readers, repeat(run))]
        if session.converts_results and not request.is_constant:
            values = session.graph.front_end.convert_results(values)
            if self.has_checks:
                session.throttle.raise_known_failure()
        results: list[Any] = [None] * request.hook_count
        end = len(request.fetched)
        for part in self._immediate:
            start, end = end, end + len(part.elements)
            results[part.hook_index] = part.assemble(values[start:end])
        if self._deferred:
            host_stage, deferred_values, start = self.host_stage, [], 0
            arrays = [*map(run.outputs.__getitem__, host_stage.deferred_arrays)]
            if host_stage.deferred_trees:
                arrays += jax.tree.leaves([run.outputs[index] for index in host_stage.deferred_trees])
            for part in self._deferred:
                results[part.hook_index] = DeferredResults(
                    partial(self._deferred_results, run, deferred_values, part, start), arrays
                )
                start += len(part.elements)
        found = request.assemble(values), tuple(results)
        if request.is_constant:
            self._constant, self._constant_run = found, None if session.checks_runs else (*found, 1)
        return found

    def _deferred_results(self, run: RunState, values: list[Any], part: HookRequest, start: int) -> Any:
        """Returns the results of a deferred hook; the first call computes the `values` of all deferred hooks."""
        if not values:
            host_stage = self.host_stage
            if host_stage.deferred:
                if self._is_bare_program:  # The run has not created its host results.
                    run.reset()
                host_stage.compute(host_stage.deferred, run, self._session)
            values.extend([*map(call_with, self._deferred_readers, repeat(run))])
        return part.assemble(values[start : start + len(part.elements)])

    def dispatch(self, run: RunState, expected_step: int | None = None, last_step: int | None = None) -> Any:
        """Starts the program and stores the new values of variables, without waiting for the device.

        The caller holds the session's lock.

        Args:
            run: The run. It gets the outputs, and whether the updates were applied.
            expected_step: As in `run`.
            last_step: If the global step is this or more, the program runs but its updates are not applied; None for no
                limit. See `RunOptions`.

        Returns:
            The number of steps; or `STEP_MISMATCH` if nothing was run.
        """
        count = 1 if self.max_steps == 1 else run.num_steps
        program, bundle, step_buffer, latches = self._program, self._bundle, self._step_buffer, self._latch_states
        try:
            step = self._store.known_step() if step_buffer is None else step_buffer.host_value
            if expected_step is not None and step != expected_step:
                return STEP_MISMATCH
            if self._max_start_step is not None and (step is None or step > self._max_start_step):
                step = self._checked_step(self._max_start_step)
            # The groups are the new values of the last run; None if other code has written one of the variables since.
            if bundle.groups is not None:
                donated, counters, _ = bundle.groups
                try:
                    read = (
                        [buffer.leaves or buffer.materialize(variable) for buffer, variable in self._read_only]
                        if self._read_only
                        else []
                    )
                except KeyError:  # A variable has no value.
                    donated, counters, read = self._gather_values()
            else:
                donated, counters, read = self._gather_values()
            inputs = [get(run) for get in self._inputs] if self._inputs else ()
            latched = tuple([state.value for state in latches]) if latches else ()
            given, step_delta = (donated, counters, read, inputs, latched, self._mask), self._known_step_delta
            if self.max_steps > 1:
                given = (*given, self._loop_arguments(run))
            if last_step is None and not self._remote_updates:
                try:
                    made = program.run(*given)
                except OtherTypesError:
                    made = None  # Outside of `except`: an error of the next line must not have this one as context.
                new, run.outputs, _, latched = made or program.run_with_new_types(*given)
                run.applied = True
            else:
                new, run.outputs, latched = self._dispatch_refusable(run, last_step, given)
                if step_delta and not run.applied:
                    step_delta = 0
            # A Ctrl-C from here on loses the session: the donated values are gone, the new ones not stored yet.
            next_step = None if step is None or step_delta is None else step + step_delta * count
            if latches and next_step is not None:
                # Not `zip`: with `strict` it takes longer than the rest of this loop.
                for number, state in enumerate(latches):
                    state.record(latched[number], next_step, count, step_delta)
            if run.applied:
                for buffer, variable, each in self._counter_updates:
                    buffer.advance(variable, each if each is None else each * count)
                if step_buffer is not None:
                    step_buffer.host_value = next_step
                    self._local_store.notify_step()
                if bundle.groups is None:
                    self._bind_bundle(new)
                else:
                    bundle.structures = program.structures_out
                    bundle.groups = new
            if latches and next_step is None:  # Reads it from the device, which alone knows the global step.
                next_step = self._session.step_or_none()
                for number, state in enumerate(latches):
                    state.record(latched[number], next_step, count)
            if self.has_writes:
                self._session.write_count += 1
            else:
                progress.count += 1
            if program.compilations.has_unlogged_duration:
                secs = program.compilations.log_duration()
                self._session.session.activity.add("compilation", secs)
                self._session.session.activity.listener("compiled", took=secs)
        except Exception as error:
            self._session.raise_explained(error, self, run.feeds)
            raise
        return count

    def _loop_arguments(self, run: RunState) -> np.ndarray:
        """Returns the last argument of a program of several steps: their number, and the first index in each block."""
        indices = [run.block_starts[tensor.op] for tensor in self._program.inputs if isinstance(tensor.op, Source)]
        return np.array([run.num_steps, *indices], np.int32)

    def _dispatch_refusable(self, run: RunState, last_step: int | None, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Starts a run whose updates may be discarded: at `last_step`, or by the parameter servers. See `dispatch`."""
        program, store, remote = self._program, self._store, self._remote_updates
        is_refused = last_step is not None and not remote and self.step_delta != 0 and store.step() >= last_step
        # A run whose updates may be discarded must keep the old values, so it donates none.
        start = program.without_donation if is_refused or (remote and program.written) else program.run_with_new_types
        new, run.outputs, sent, latched = start(*given)
        run.applied = not is_refused
        if remote:
            values = [list(values) for values in jax.device_get(sent)]
            run.applied = store.submit(list(zip(remote, values, strict=True)), last_step)
        return new, run.outputs, latched

    def _gather_values(self) -> tuple[Any, Any, Any]:
        """Reads the values of the program's variables from the store."""
        program, store = self._program, self._store
        try:
            for variable in program.host_counters:
                store.read_counter(variable)
            donated, counters, read = [
                [*store.read_leaves(group)] for group in (program.donated, program.counters, program.read_only)
            ]
        except FailedPreconditionError as error:
            raise explain_uninitialized(self.plan, error) from None
        return donated, counters, read

    def _bind_bundle(self, new: tuple[FlatValues, FlatValues, FlatValues]) -> None:
        """Binds the bundle to the new values of a run; the old values were in separate buffers."""
        self._bundle.bind(new, self._program.structures_out)
        if not self.is_cacheable:  # The variables have the values now.
            for tensor in self._program.inputs:
                if isinstance(tensor.op, Constant):
                    tensor.op.offload_to_host()

    def _checked_step(self, last_step: int) -> int:
        """Returns the global step.

        Args:
            last_step: The largest global step from which a run does not exceed its dtype; not that of `RunOptions`.

        Raises:
            FailedPreconditionError: The global step is larger.
        """
        step = self._store.step()
        if step <= last_step:
            return step
        variable = next(v for v in self.plan.updates if v is find_global_step(v.graph))
        raise FailedPreconditionError(
            variable.op.node_def,
            variable.op,
            f"The global step {variable.op.name!r} cannot count to {step + (self.step_delta or 0)}: its dtype is "
            f"{variable.dtype}. Set jax_enable_x64 before the graph is built: the step is then int64, and a restored "
            f"int32 step is converted.",
        )

    # Around a program -------------------------------------------------------------------------------------------

    def dispatch_staged(self, run: RunState) -> None:
        """Starts the program of a run of `run_staged`, if it has one, as its options require; see `dispatch`."""
        program, options, metadata = self.program, run.options, run.metadata
        if program is None:
            run.applied = True
            return
        last_step = None if options is None else options.last_step
        if options is not None and options.output_partition_graphs and metadata is not None:
            inputs, latched = [get(run) for get in self._inputs], tuple([state.value for state in self._latch_states])
            lowered = program.lower(*self._gather_values(), inputs, latched, self._mask)
            metadata.partition_graphs.append(str(lowered.compile().as_text()))
        self.dispatch(run, last_step=last_step)
        for update in self._fetched_remote:
            run.host_results[update] = self._remote_result(update)
        if metadata is not None and (self.plan.remote_updates or not run.applied):
            metadata.applied = run.applied
        if options is not None and options.trace_level and metadata is not None:
            jax.block_until_ready((self._store.read_leaves(program.written), run.outputs))

    def _remote_result(self, update: Update) -> Any:
        """Returns the present values of the variables of an update, in the structure of the update."""
        leaves, structure = self._store.read_leaves(update.variables), self._store.structure
        pairs = zip(update.variables, leaves, strict=True)
        return jax.tree.unflatten(update.structure, [jax.tree.unflatten(structure(v), found) for v, found in pairs])

    def fence(self, run: RunState) -> jax.Array | None:
        """Returns an array that is ready once a run is computed and that no later run donates, or None."""
        program = self.program
        if program is None:
            return None
        # `addressable_data` is this process's shard of an array: it is ready when the run is computed, too.
        arrays = jax.tree.leaves(run.outputs)
        if not arrays and program.counters:
            arrays = jax.tree.leaves(self._store.read_leaves(program.counters[:1]))
        if arrays:
            return placement.addressable_data(min(arrays, key=lambda leaf: leaf.size))
        if self._latch_states:
            return placement.addressable_data(self._latch_states[0].value)
        arrays = jax.tree.leaves(self._store.read_leaves(program.written))
        if not arrays:
            return None
        if self._smallest_leaf is None:  # Found once, because sizes hardly change from run to run.
            self._smallest_leaf = min(range(len(arrays)), key=lambda index: arrays[index].size)
        return _copy(placement.addressable_data(arrays[min(self._smallest_leaf, len(arrays) - 1)]))


_copy = jax.jit(jnp.copy)  # Much faster than `jnp.copy` alone.


def explain_uninitialized(plan: Plan, error: FailedPreconditionError) -> FailedPreconditionError:
    """Returns the error for a variable without a value; its advice differs if an initial value reads the variable."""
    for operation in plan.operations:
        if isinstance(operation, Update) and operation.is_initializer and error.op in ancestors(operation.inputs):
            name = error.op.name
            return FailedPreconditionError(
                operation.node_def,
                operation,
                f"The initial value of {operation.variables[0].op.name!r} reads variable {name!r}, which has no value "
                f"before this run is over. Write `{name}.initialized_value()` in place of `{name}`, or initialise "
                f"{name!r} in an earlier run.",
            )
    return error
