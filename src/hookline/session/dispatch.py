"""The device stage of a run: values out of the store, through the program, and back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hookline.graph.variable import Update
from hookline.session.execution import Execution, Run
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.program import Program
from hookline.session.store import VariableStore


def dispatch(
    execution: Execution, store: VariableStore, run: Run, options: RunOptions | None, metadata: RunMetadata | None
) -> None:
    """Starts the program of an execution and exchanges the values of its variables, without waiting for the device."""
    program = execution.program
    if program is None:
        return
    arguments = (
        store.take(program.taken),
        store.take(program.kept),
        tuple([get(run) for get in execution.input_getters]),
    )
    if options is None:
        _run(execution, program, store, run, arguments, None, metadata)
    else:
        if metadata is not None and options.output_partition_graphs:
            metadata.partition_graphs.append(str(program.run.lower(*arguments).compile().as_text()))
        if options.last_step is None or execution.step_gain == 0:
            _run(execution, program, store, run, arguments, options.last_step, metadata)
        else:
            _run_up_to(execution, program, store, run, arguments, options.last_step, metadata)
        if options.trace_level and metadata is not None:
            jax.block_until_ready((store.take(program.written), run.outputs))
    for update in execution.pulled:
        run.hosts[update] = _result(store, update)


def _run(
    execution: Execution,
    program: Program,
    store: VariableStore,
    run: Run,
    arguments: tuple[Any, Any, Any],
    last_step: int | None,
    metadata: RunMetadata | None,
) -> None:
    remote = execution.plan.remote
    # A run that is refused changes nothing here either; values that were given away could not be kept.
    refusable = bool(remote) and last_step is not None and bool(program.written)
    new, run.outputs, sent = (program.dry if refusable else program.run)(*arguments)
    values = zip(program.written, new, program.structures_out, execution.gains, strict=True)
    if not refusable:
        store.put(values)
    if remote:
        inputs = [list(given) for given in jax.device_get(sent)]
        applied = store.submit(list(zip(remote, inputs, strict=True)), last_step)
        if applied and refusable:
            store.put(values)
        if metadata is not None:
            metadata.applied = applied


def _run_up_to(
    execution: Execution,
    program: Program,
    store: VariableStore,
    run: Run,
    arguments: tuple[Any, Any, Any],
    last_step: int,
    metadata: RunMetadata | None,
) -> None:
    """Throws the new values away if they would take the global step past the limit."""
    gain = execution.step_gain
    if gain is not None and store.step() + gain <= last_step:
        return _run(execution, program, store, run, arguments, None, metadata)
    new, run.outputs, _ = program.dry(*arguments)
    place = execution.global_step_place
    if gain is None and place is not None and int(np.asarray(new[place][0])) <= last_step:
        store.put(zip(program.written, new, program.structures_out, execution.gains, strict=True))
    elif metadata is not None:
        metadata.applied = False
    return None


def _result(store: VariableStore, update: Update) -> Any:
    """Returns the values that the variables of an update have now, in its structure."""
    leaves = store.take(update.variables)
    values = [jax.tree.unflatten(store.structure(v), taken) for v, taken in zip(update.variables, leaves, strict=True)]
    return jax.tree.unflatten(update.structure, values)
