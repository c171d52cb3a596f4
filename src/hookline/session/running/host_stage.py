"""The host stages of a run: host operations before the program, after it, and deferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import jax
import numpy as np

from hookline.errors import OutOfRangeError
from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import HostCall, SessionCall
from hookline.graph.variable import Update, VariableRead
from hookline.session.plan.fetches import call_with
from hookline.session.plan.plan import Plan, TensorKey, input_tensors
from hookline.session.plan.result_readers import ResultReader, RunState, make_argument_reader

HostOperation = HostCall | SessionCall


class HostStage:
    """The host operations of a plan.

    Args:
        plan: The plan.
        awaited: The fetches whose results a run returns.
        deferred: The fetches whose results are read later.
        indices: The index of each tensor among the outputs of the program. In a program of several steps some tensors
            may be missing: `RepeatedStep` checks such a step and never runs it.

    Attributes:
        before: The operations that run before the program.
        after: The operations that run after it.
        deferred: The operations that run when their results are read; no run waits for them.
        deferred_arrays: The indices of the outputs that deferred results need and that are one array.
        deferred_trees: The indices of the outputs that deferred results need and that are another structure.
        before_needs_lock: Whether operations before the program need state that the session's lock protects: counters,
            the session itself, or the choice of this run's batch.
    """

    def __init__(
        self,
        plan: Plan,
        awaited: Sequence[Tensor | Operation],
        deferred: Sequence[Tensor | Operation],
        indices: Mapping[TensorKey, int],
    ) -> None:
        self.before = plan.before
        self.deferred = _deferred_operations(plan, awaited) if deferred else []
        self.after = [operation for operation in plan.after if operation not in self.deferred]
        self._pulls_any = bool(plan.pulled)
        keys = [tensor.key for tensor in plan.pulled]
        self._arguments: dict[HostOperation, list[ResultReader]] = {}
        # By operation, its inputs from the program: index in `plan.pulled` to index among the outputs.
        self._device_inputs_of: dict[HostOperation, dict[int, int]] = {}
        for operation in (*plan.before, *plan.after):
            self._arguments[operation] = [make_argument_reader(plan, t, operation, keys) for t in operation.inputs]
            wanted = {tensor.key for tensor in operation.inputs} & indices.keys()
            self._device_inputs_of[operation] = {i: indices[key] for i, key in enumerate(keys) if key in wanted}
        self.before_needs_lock = any(
            isinstance(operation, SessionCall)
            or any(isinstance(t.op, VariableRead) or t.op in plan.sources for t in operation.inputs)
            for operation in plan.before
        )
        # The indices in `plan.pulled` of arrays of numbers in the host's memory. `np.asarray` of these copies nothing
        # from a device, and takes a third of the time of `jax.device_get`.
        is_cpu = jax.default_backend() == "cpu"
        self._in_host_memory = {i for i, tensor in enumerate(plan.pulled) if is_cpu and _is_numeric(tensor.spec)}
        later = [
            *input_tensors(self.deferred, lambda tensor: True),
            *(e for e in deferred if isinstance(e, Tensor)),
        ]
        found = [tensor for tensor in later if tensor.key in indices]
        self.deferred_arrays = [indices[tensor.key] for tensor in found if specs.is_array(tensor.spec)]
        self.deferred_trees = [indices[tensor.key] for tensor in found if not specs.is_array(tensor.spec)]

    def compute(self, operations: Sequence[HostOperation], run: RunState, session: Any) -> None:
        """Runs host operations, which must be in creation order, on the values that the run has so far."""
        if run.outputs and self._pulls_any:
            found: dict[int, int] = {}
            for operation in operations:
                found.update(self._device_inputs_of[operation])
            outputs = map(run.outputs.__getitem__, found.values())
            values = map(np.asarray, outputs) if self._in_host_memory.issuperset(found) else jax.device_get([*outputs])
            run.host_inputs.update(zip(found, values, strict=True))
        for operation in operations:
            given = [*map(call_with, self._arguments[operation], repeat(run))]
            if isinstance(operation, SessionCall):
                run.host_results[operation] = operation.fn(session.session, *given)
                continue
            try:
                with session.staged.host_lock(operation):
                    run.host_results[operation] = operation.call_with_values(given)
            except StopIteration as error:
                raise OutOfRangeError(
                    operation.node_def, operation, f"{operation.node_def}: the input has ended."
                ) from error
            except Exception as error:
                operation.annotate_error(error)
                raise


def _is_numeric(spec: Any) -> bool:
    return specs.is_array(spec) and isinstance(spec.dtype, np.dtype)  # Not random keys.


def _deferred_operations(plan: Plan, awaited: Sequence[Tensor | Operation]) -> list[HostOperation]:
    """Returns the host operations that may run after the run, when their results are read."""
    needed = set(plan.needed(awaited))
    for operation in plan.operations:
        if isinstance(operation, SessionCall | Update):  # These must run in the run, with their inputs.
            needed.update(plan.needed([operation]))
    return [operation for operation in plan.after if operation not in needed]
