"""The device stage of a run: values out of the store, through the program, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hookline.errors import FailedPreconditionError
from hookline.graph.global_step import get_global_step
from hookline.graph.graph import ancestors
from hookline.graph.variable import Update, Variable
from hookline.session.execution import Execution, Run
from hookline.session.latches import Latches
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan import Plan
from hookline.session.program import Program
from hookline.session.store import VariableStore


def dispatch(
    execution: Execution,
    store: VariableStore,
    latches: Latches,
    run: Run,
    options: RunOptions | None,
    metadata: RunMetadata | None,
) -> None:
    """Starts the program of an execution and exchanges the values of its variables, without waiting for the device."""
    program = execution.program
    if program is None:
        run.applied = True
        return
    if execution.counts_up_to is not None and store.step() + (execution.step_gain or 0) > execution.counts_up_to:
        raise _uncountable(program.written, store.step() + (execution.step_gain or 0))
    try:
        values = store.take(program.taken), store.take(program.kept)
    except FailedPreconditionError as error:
        raise explained(execution.plan, error) from None
    arguments = (*values, tuple([get(run) for get in execution.input_getters]), latches.take(program.latches))
    if options is None:
        _run(execution, program, store, latches, run, arguments, None, metadata)
    else:
        if metadata is not None and options.output_partition_graphs:
            metadata.partition_graphs.append(str(program.run.lower(*arguments).compile().as_text()))
        if options.last_step is None or execution.step_gain == 0:
            _run(execution, program, store, latches, run, arguments, options.last_step, metadata)
        else:
            _run_up_to(execution, program, store, latches, run, arguments, options.last_step, metadata)
        if options.trace_level and metadata is not None:
            jax.block_until_ready((store.take(program.written), run.outputs))
    if program.compilations.untold:
        program.compilations.end()
    for update in execution.pulled:
        run.hosts[update] = _result(store, update)


def _uncountable(written: Sequence[Variable], value: int) -> FailedPreconditionError:
    """Returns the error of a global step that cannot count to `value`."""
    step = next(variable for variable in written if variable is get_global_step(variable.graph))
    return FailedPreconditionError(
        step.op.node_def,
        step.op,
        f"The global step {step.op.name!r} cannot count to {value}: its dtype is {step.dtype}. Set jax_enable_x64 "
        f"before the graph is built; it is then one of int64, also when this model is restored.",
    )


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


def _run(
    execution: Execution,
    program: Program,
    store: VariableStore,
    latches: Latches,
    run: Run,
    arguments: tuple[Any, Any, Any, Any],
    last_step: int | None,
    metadata: RunMetadata | None,
) -> None:
    remote = execution.plan.remote
    # A run that is refused changes nothing here either; values that were given away could not be kept.
    refusable = bool(remote) and last_step is not None and bool(program.written)
    new, run.outputs, sent, latched = (program.dry if refusable else program.run)(*arguments)
    values = zip(program.written, new, program.structures_out, execution.gains, strict=True)
    if not refusable:
        store.put(values)
        run.applied = not remote
    if remote:
        inputs = [list(given) for given in jax.device_get(sent)]
        run.applied = store.submit(list(zip(remote, inputs, strict=True)), last_step)
        if run.applied and refusable:
            store.put(values)
        if metadata is not None:
            metadata.applied = run.applied
    if latched:
        latches.put(program.latches, latched, _step_of(store))


def _run_up_to(
    execution: Execution,
    program: Program,
    store: VariableStore,
    latches: Latches,
    run: Run,
    arguments: tuple[Any, Any, Any, Any],
    last_step: int,
    metadata: RunMetadata | None,
) -> None:
    """Applies nothing if the run begins at the limit or past it; the fetches are computed all the same."""
    if store.step() < last_step:
        return _run(execution, program, store, latches, run, arguments, None, metadata)
    _, run.outputs, _, latched = program.dry(*arguments)
    if latched:
        latches.put(program.latches, latched, _step_of(store))
    if metadata is not None:
        metadata.applied = False
    return None


def _step_of(store: VariableStore) -> int | None:
    step = store.known_step()
    if step is not None:
        return step
    try:
        return store.step()
    except RuntimeError:  # The graph has none.
        return None


def _result(store: VariableStore, update: Update) -> Any:
    """Returns the values that the variables of an update have now, in its structure."""
    leaves = store.take(update.variables)
    values = [jax.tree.unflatten(store.structure(v), taken) for v, taken in zip(update.variables, leaves, strict=True)]
    return jax.tree.unflatten(update.structure, values)
