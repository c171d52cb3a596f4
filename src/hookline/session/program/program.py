"""Programs: the device stage of a plan as one function, traced and compiled by JAX."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from hookline.errors import InvalidArgumentError
from hookline.graph import placement
from hookline.graph.conditions import Latch
from hookline.graph.graph import TRACED_GRAPH, Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.check import Check
from hookline.graph.nodes.nodes import Source
from hookline.graph.nodes.random import WORKER_INDEX
from hookline.graph.variable import Variable
from hookline.session.local_store import FlatValues
from hookline.session.plan.plan import HookTensors, Plan, TensorKey
from hookline.session.plan.variable_roles import VariableRoles
from hookline.session.program.compilation_log import CompilationLog, compiler_options
from hookline.session.program.shared_jit import SharedJit
from hookline.session.program.step_loop import repeat_step, zeros_like_spec
from hookline.session.program.trace import Trace
from hookline.session.running import launch_log
from hookline.session.running.latches import LatchKey, LatchValue, first_failure, next_latch_value
from hookline.session.store import Leaves, VariableStore

StepResults = tuple[tuple[FlatValues, FlatValues, FlatValues], tuple[Any, ...], tuple[Any, ...], tuple[LatchValue, ...]]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Structures:
    """The tree structures of variables, which JAX compares when it looks for a compiled program."""

    of: tuple[Any, ...]


class Program:
    """One compiled program: (values of variables, inputs, latches, mask) to (new values, outputs, sent, latches).

    Variables are passed flattened: a step then never rebuilds the user's trees. They come in three groups: written
    variables, whose old values are donated; written counters; and variables that are only read. The new values come in
    the groups of the arguments, so that the next run takes them unchanged: the donated variables, the counters, and
    then the variables that are written without reading their old value. Counters that no operation on the device reads
    are left to the host.

    Args:
        plan: The plan to compute.
        inputs: Tensors whose values are arguments: feeds, host results, or large constants.
        outputs: Tensors that the caller or a host operation reads.
        for_hooks: Tensors that only hooks read. They are computed behind an optimization barrier, so that XLA compiles
            the rest as without them.
        store: The store of the variables, which has their tree structures.
        base_operations: The operations that every run computes.
        gated: Further tensors for hooks, by hook. A mask selects those that a run computes.
        max_steps: The largest number of steps. Above 1, the number is an argument of the program; batches come in
            blocks of that length or more, and the outputs have that length.
        warned: The warnings that the session's programs have logged, which are not repeated.

    Attributes:
        donated, counters, read_only, written: The variables of its arguments and results, as described above.
        groups: The variables that it writes: donated, counters, and write-only.
        checks: The operations that have a check.
        latches: Its latches. All checks together are one latch.
        host_counters: The counters left to the host. They are not in the program.
        run: Makes a run; raises `OtherTypesError` before anything is done if `run_with_new_types` must make it.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        for_hooks: Sequence[Tensor],
        store: VariableStore,
        base_operations: frozenset[Operation],
        gated: Sequence[HookTensors],
        max_steps: int,
        warned: set[str],
    ) -> None:
        self.plan = plan
        self._max_steps = max_steps
        self._base_operations = base_operations
        self._gated = gated
        hook_tensors = [*for_hooks, *itertools.chain.from_iterable(gated)]
        self.worker_index = store.worker_index
        self.inputs = list(inputs)
        self._ungated = [*outputs, *for_hooks]
        self.outputs = [*outputs, *hook_tensors]
        self.for_hooks = frozenset(tensor.key for tensor in hook_tensors) - {tensor.key for tensor in outputs}
        roles = VariableRoles(plan, self.outputs, self.for_hooks)
        self.donated, self.counters, self.read_only, self.host_counters = (
            roles.donated,
            roles.counters,
            roles.read_only,
            roles.host_counters,
        )
        self.groups: tuple[Sequence[Variable], ...] = self.donated, self.counters, roles.write_only
        self.written = [variable for group in self.groups for variable in group]
        self._left_to_host = {update for variable in self.host_counters for update in plan.updates[variable]}
        self._base_operations -= self._left_to_host
        self.checks = [operation for operation in (*plan.device, *plan.remote_updates) if operation.check]
        self.latches: list[LatchKey] = [operation for operation in plan.device if isinstance(operation, Latch)]
        if self.checks:
            self.latches.append(Check)
        self.structure_in = store.structure
        self.structures_out: Sequence[Any] = []
        names = ", ".join(_short_name(tensor) for tensor in self.outputs) or "none"
        updates = [variable for variable in plan.updates if variable not in self.host_counters]
        writes = ", ".join(variable.op.name for variable in (*updates, *self.host_counters)) or "none"
        more = " and hook fetches" if self.for_hooks else ""
        steps = f"up to {max_steps} steps; " if max_steps > 1 else ""
        self.compilations = CompilationLog(f"{steps}outputs {names}{more}; writes {writes}", warned)
        self._compiler_options = compiler_options(roles.caller_variables, in_loop=max_steps > 1)
        # JAX gets only the leaves: it cannot distinguish two trees of unknown structure with the same leaves.
        self._has_unknown_structure = any(v.spec is specs.UNKNOWN for v in (*self.written, *self.read_only))
        # If variables have shardings, a first trace finds out whether this program reshards them.
        self._default_sharding, self._mesh_context = store.default_sharding, store.mesh_context
        self._any_types: Any = self._compiled_run(donates=True) if self._default_sharding is None else self._first_run
        self.run: Callable[..., Any] = self.run_with_new_types
        self._without_donation: Any = None
        self._known: dict[Any, int] = {}

    def output_indices(self, mask: Sequence[bool]) -> dict[TensorKey, int]:
        """Returns the indices of the outputs that a run with this mask computes; for several steps, of the last one."""
        indices = {} if self._max_steps > 1 else self.row_indices
        start = len(self._ungated)
        for tensors, wanted in zip(self._gated, mask, strict=True):
            if wanted:
                indices |= {tensor.key: start + i for i, tensor in enumerate(tensors)}
            start += len(tensors)
        return indices

    @property
    def row_indices(self) -> dict[TensorKey, int]:
        """The indices of the outputs that each step computes."""
        return {tensor.key: i for i, tensor in enumerate(self._ungated)}

    def run_with_new_types(self, *arguments: Any) -> Any:
        """Makes a run with arguments of any types, and sets `run` to the function for such arguments."""
        made = self._any_types(*arguments)
        self.run = getattr(self._any_types, "direct", self._any_types)
        return made

    @property
    def without_donation(self) -> Any:
        """The same program without donation: for a run whose updates may have to be discarded."""
        if self._without_donation is None:
            self._without_donation = self._compiled_run(donates=False)
        return self._without_donation

    def lower(self, *arguments: Any) -> Any:
        """Lowers the program for arguments as in `run`; see `jax.stages.Lowered`."""
        with placement.enter_mesh(self._mesh_context):
            return self._jitted(donates=True).lower(
                *arguments, *([self._structures_in()] if self._has_unknown_structure else [])
            )

    def _jitted(self, *, donates: bool) -> Any:
        options: dict[str, Any] = {"compiler_options": self._compiler_options}
        if self._default_sharding is not None:
            # Written variables keep their shardings.
            groups = tuple([variable.shardings or None for variable in group] for group in self.groups)
            # Fetched arrays that span several processes are replicated.
            replicated = None if self._default_sharding.is_fully_addressable else self._default_sharding
            shardings = groups, replicated, None, self._default_sharding
            options["out_shardings"] = (*shardings, None) if self._has_unknown_structure else shardings
        options["donate_argnums"] = 0 if donates else ()
        if self._has_unknown_structure or launch_log.current() is not None:
            # The program without donation is a function of its own, so that JAX traces it, and the trace is logged.
            return jax.jit(self._trace if donates else lambda *arguments: self._trace(*arguments), **options)
        return SharedJit(self._trace, self.compilations, **options)

    def _compiled_run(self, *, donates: bool) -> Any:
        """Returns the jitted program, which is called in the mesh context of its graph."""
        compiled = self._jitted(donates=donates)
        if self._default_sharding is None and not self._has_unknown_structure:
            return compiled
        launches, about = launch_log.current(), self.compilations.description
        graph = next((variable.graph for variable in self.written), None)
        num_reshards = 0 if graph is None else graph.num_reshards

        def run(*arguments: Any) -> Any:
            if graph is not None and graph.num_reshards != num_reshards:  # Another program has resharded variables.
                self._without_donation = None
                return self._first_run(*arguments) if donates else self.without_donation(*arguments)
            with placement.enter_mesh(self._mesh_context):
                if launches is not None:  # Multi-process SPMD.
                    fed = jax.tree.leaves(arguments[3])
                    kind = donates, launch_log.inputs_key(fed)
                    launches.record(self._known, about, kind, lambda: self._text(compiled, arguments), fed)
                if not self._has_unknown_structure:
                    results = compiled(*arguments)
                else:  # The structures of the variables are part of the arguments and results.
                    *results, structures = compiled(*arguments, self._structures_in())
                    self.structures_out = structures.of
            if launches is None:
                return results
            new, outputs, *rest = results
            return new, jax.tree.map(placement.addressable_data, outputs), *rest

        return run

    def _text(self, compiled: Any, arguments: tuple[Any, ...]) -> str:
        return compiled.lower(*arguments, *([self._structures_in()] if self._has_unknown_structure else [])).as_text()

    def _first_run(
        self,
        donated: FlatValues,
        counters: FlatValues,
        read_only: FlatValues,
        inputs: Any,
        latched: Any,
        mask: Any,
        *span: Any,
    ) -> Any:
        """Reshards variables to the shardings that the program fixes for them, then runs.

        Without this, the second run would compile again for the shardings that the first one left.
        """
        with placement.enter_mesh(self._mesh_context):
            self._infer_shardings(donated, counters, read_only, inputs, latched, mask)
        self._any_types = self.run = self._compiled_run(donates=True)
        return self.run(
            _device_put_values(self.donated, donated),
            _device_put_values(self.counters, counters),
            read_only,
            inputs,
            latched,
            mask,
            *span,
        )

    def _infer_shardings(
        self, donated: FlatValues, counters: FlatValues, read_only: FlatValues, inputs: Any, latched: Any, mask: Any
    ) -> None:
        known, old = (*self.donated, *self.counters, *self.read_only), (*donated, *counters, *read_only)
        written = [variable for variable in self.written if variable.shardings]
        if not written:
            return

        def new(old: FlatValues, inputs: Any, latched: Any, mask: Any) -> Any:
            inputs = inputs if self._max_steps == 1 else self._batch_at(itertools.repeat(0), inputs)
            groups = self._trace_step(dict(zip(known, old, strict=True)), inputs, latched, mask)[0]
            values = dict(zip(self.written, (leaves for group in groups for leaves in group), strict=True))
            return [values[variable] for variable in written]

        found = iter(placement.fixed_output_shardings(new, old, inputs, latched, mask))
        for variable in written:
            reshards = {}
            for index, (now, spec) in enumerate(zip(variable.shardings, jax.tree.leaves(variable.spec), strict=True)):
                wanted = next(found)
                if wanted is not None and not wanted.is_equivalent_to(now, len(spec.shape)):
                    reshards[index] = wanted
            if reshards:
                variable.reshard(reshards)

    def _structures_in(self) -> _Structures:
        return _Structures(tuple(map(self.structure_in, (*self.donated, *self.counters, *self.read_only))))

    def _named_arguments(
        self, donated: FlatValues, counters: FlatValues, read_only: FlatValues, inputs: Sequence[Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yields the arguments with their names, for the log."""
        for variable, leaves in zip(
            (*self.donated, *self.counters, *self.read_only), (*donated, *counters, *read_only), strict=True
        ):
            yield variable.op.name, leaves
        yield from zip((tensor.name for tensor in self.inputs), inputs, strict=True)

    def _trace(
        self,
        donated: FlatValues,
        counters: FlatValues,
        read_only: FlatValues,
        inputs: Sequence[Any],
        latched: Sequence[LatchValue],
        mask: Sequence[Any],
        extra: Any = None,
    ) -> tuple[Any, ...]:
        # The body of a traced function runs when JAX compiles, and only then.
        self.compilations.record_trace(self._named_arguments(donated, counters, read_only, inputs))
        token = WORKER_INDEX.set(self.worker_index)
        of_graph = TRACED_GRAPH.set(next((operation.graph for operation in self.plan.operations), None))
        try:
            if self._max_steps > 1:
                return self._trace_loop(donated, counters, read_only, inputs, latched, mask, extra)
            given = zip(
                (*self.donated, *self.counters, *self.read_only), (*donated, *counters, *read_only), strict=True
            )
            traced = self._trace_step(dict(given), inputs, latched, mask)
            return traced if extra is None else (*traced, _Structures(tuple(self.structures_out)))
        finally:
            WORKER_INDEX.reset(token)
            TRACED_GRAPH.reset(of_graph)

    def _trace_loop(
        self,
        donated: FlatValues,
        counters: FlatValues,
        read_only: FlatValues,
        inputs: Any,
        latched: Any,
        mask: Any,
        span: jax.Array,
    ) -> StepResults:
        """Traces a loop of steps; `span` has their number, then the first index in the block of each source."""
        read_values, rows = dict(zip(self.read_only, read_only, strict=True)), len(self._ungated)

        def step(number: Any, groups: tuple[FlatValues, FlatValues, FlatValues], latched: Any, kept: Any) -> Any:
            changing = zip((*self.donated, *self.counters), (*groups[0], *groups[1]), strict=True)
            batch = self._batch_at([start + number for start in span[1:]], inputs)
            wanted = [jnp.logical_and(each, number == span[0] - 1) for each in mask]
            old = {**dict(changing), **read_values}
            groups, outputs, _, latched = self._trace_step(old, batch, latched, wanted, kept)
            return groups, outputs[:rows], outputs[rows:], latched

        warn = self.compilations.warn_once
        made = repeat_step(step, span[0], self._max_steps, (donated, counters), latched, self.written, warn)
        groups, outputs, latched = made
        return groups, outputs, (), latched

    def _batch_at(self, starts: Iterable[Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs of one step: one batch from each block, and the other inputs unchanged."""
        at = iter(starts)

        def of(tensor: Tensor, value: Any) -> Any:
            if not isinstance(tensor.op, Source):
                return value
            index = next(at)
            return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), value)

        return [of(tensor, value) for tensor, value in zip(self.inputs, inputs, strict=True)]

    def _trace_step(
        self,
        old: dict[Variable, Leaves],
        inputs: Sequence[Any],
        latched: Sequence[LatchValue],
        mask: Sequence[Any],
        kept: Sequence[Any] | None = None,
    ) -> StepResults:
        """Traces a step. `kept` has the values of gated outputs that are not wanted; by default they are zeros."""
        known = {variable: jax.tree.unflatten(self.structure_in(variable), leaves) for variable, leaves in old.items()}
        keyed = {tensor.key: value for tensor, value in zip(self.inputs, inputs, strict=True)}
        frame = Trace(self.plan, self.for_hooks, known, keyed)
        frame.compute([operation for operation in self.plan.device if operation in self._base_operations])
        # No output may share its buffer with a variable, with an input or with another output.
        seen = {id(leaf) for leaf in jax.tree.leaves((list(old.values()), inputs))}

        def distinct(leaf: Any) -> Any:
            if id(leaf) in seen or not isinstance(leaf, Tracer):
                leaf = jnp.copy(leaf)
            seen.add(id(leaf))
            return leaf

        new: list[Leaves] = []
        structures = []
        skip = frame.skip_condition()
        for variable in self.written:
            leaves, structure = jax.tree.flatten(frame.final_value(variable))
            if self.plan.is_guarded(variable):
                self._check_same_specs(variable, old[variable], leaves, structure)
                leaves = [_select_unless(skip, *pair) for pair in zip(old[variable], leaves, strict=True)]
            new.append(tuple(distinct(leaf) for leaf in leaves))
            structures.append(structure)
        outputs = tuple(self._output(tensor, frame.output(tensor), distinct) for tensor in self._ungated)
        left = None if kept is None else iter(kept)
        for tensors, wanted in zip(self._gated, mask, strict=True):
            others = None if left is None else tuple(itertools.islice(left, len(tensors)))
            outputs += self._compute_gated(frame, tensors, wanted, distinct, others)
        sent = tuple(frame.arguments(update) for update in self.plan.remote_updates)
        conditions = [frame.values[latch] for latch in self.latches if isinstance(latch, Latch)]
        if self.checks:
            conditions.append(first_failure({op.index: failed for op, failed in frame.failures().items()}))
        # Only now, because a trace that fails must change nothing.
        self.structures_out = structures
        first, rest = len(self.donated), len(self.donated) + len(self.counters)
        groups = new[:first], new[first:rest], new[rest:]
        return groups, outputs, sent, tuple(map(next_latch_value, latched, conditions))

    def _compute_gated(
        self,
        frame: Trace,
        tensors: HookTensors,
        wanted: Any,
        distinct: Callable[[Any], Any],
        others: tuple[Any, ...] | None,
    ) -> tuple[Any, ...]:
        """Returns the outputs for a hook, computed only in runs that want them, unless each run has these numbers."""
        needed = set(self.plan.needed(tensors)) - self._base_operations - self._left_to_host
        operations = [operation for operation in self.plan.device if operation in needed]
        if not operations and all(specs.is_array(t.spec) and t.spec.shape == () for t in tensors):
            return tuple(self._output(tensor, frame.output(tensor), distinct) for tensor in tensors)

        def compute() -> tuple[Any, ...]:
            branch = frame.fork()
            branch.compute(operations)
            return tuple(self._output(tensor, branch.output(tensor), jnp.asarray) for tensor in tensors)

        if _may_deadlock_in_branches(self._default_sharding):
            return compute()
        if others is None:
            like = jax.eval_shape(compute)
            return jax.lax.cond(wanted, compute, lambda: jax.tree.map(zeros_like_spec, like))
        return jax.lax.cond(wanted, compute, lambda: others)

    def _check_same_specs(self, variable: Variable, old: Sequence[Any], new: Sequence[Any], structure: Any) -> None:
        """Checks that old and new values have the same structure, shapes and dtypes: a guard selects one of them."""
        forms = [[(leaf.shape, leaf.dtype) for leaf in map(jnp.asarray, leaves)] for leaves in (old, new)]
        if structure != self.structure_in(variable) or forms[0] != forms[1]:
            guard = self.plan.guards[0]
            raise InvalidArgumentError(
                guard.node_def,
                guard,
                f"{guard.node_def} cannot skip an update of {variable.op.name!r} that gives it another structure, "
                f"shape or dtype. Make that update in a run of its own.",
            )

    def _output(self, tensor: Tensor, value: Any, distinct: Callable[[Any], Any]) -> Any:
        try:
            return jax.tree.map(distinct, value)
        except TypeError as error:
            tensor.op.annotate_error(error)
            raise


def _short_name(tensor: Tensor) -> str:
    """Returns the name of a tensor; of a view, the last key: "loss" for `step:0[1]['loss']`."""
    return tensor.name.removesuffix("']").rpartition("['")[2] if tensor.name.endswith("']") else tensor.name


def _device_put_values(variables: Sequence[Variable], flat: FlatValues) -> list[Leaves]:
    """Returns the values of variables, each array with its sharding."""
    return [
        tuple(map(placement.device_put, leaves, variable.shardings)) if variable.shardings else leaves
        for variable, leaves in zip(variables, flat, strict=True)
    ]


def _may_deadlock_in_branches(sharding: Any) -> bool:
    """Returns whether collectives inside a branch and beside it may deadlock.

    This happens now and then with XLA's devices on CPU: XLA ends the process after 40 seconds.
    """
    return sharding is not None and len(sharding.device_set) > 1 and next(iter(sharding.device_set)).platform == "cpu"


def _select_unless(skip: Any, old: Any, new: Any) -> Any:
    """Returns the new value of a leaf, or the old one if the run is skipped."""
    new, sharding = jnp.asarray(new), jax.typeof(old).sharding
    return jax.lax.select(skip, old, jax.reshard(new, sharding) if sharding.mesh.explicit_axes else new)
