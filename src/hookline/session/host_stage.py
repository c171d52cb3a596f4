"""The host stages of a run: the host operations before the device's part, behind it, and those that nobody awaits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import OutOfRangeError
from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import HostCall, SessionCall
from hookline.graph.variable import Update, VariableRead
from hookline.session.getters import Run, argument_getter
from hookline.session.late import LateResults
from hookline.session.plan import Key, Plan, input_tensors

OnHost = HostCall | SessionCall


class HostStage:
    """The host operations of a plan.

    Args:
        plan: The plan.
        awaited: What the run returns: what it needs is computed in the run itself.
        defers: Whether anything else is asked for.

    Attributes:
        early: Those that run before the program.
        after: Those that run behind it.
        deferred: Those whose results nobody in the run waits for.
        pulled: What they take from the program.
        early_is_inside: Whether the early ones need what only the session's lock keeps still: counters, the session
            itself, or which batch is this run's.
    """

    def __init__(self, plan: Plan, awaited: Sequence[Tensor | Operation], *, defers: bool) -> None:
        self.early = plan.early
        self.deferred = _deferred(plan, awaited) if defers else []
        self.after = [operation for operation in plan.late if operation not in self.deferred]
        self.pulled = input_tensors(plan.late, plan.needs_device)
        keys = [tensor.key for tensor in self.pulled]
        self._arguments = {
            operation: [argument_getter(plan, tensor, operation, keys) for tensor in operation.inputs]
            for operation in (*plan.early, *plan.late)
        }
        self.early_is_inside = any(
            isinstance(operation, SessionCall)
            or any(isinstance(t.op, VariableRead) or t.op in plan.sources for t in operation.inputs)
            for operation in plan.early
        )
        self._places: Mapping[Key, int] = {}

    def find_outputs(self, places: Mapping[Key, int]) -> None:
        """Says where among the outputs of the program each tensor is."""
        self._places = places

    def compute(self, operations: Sequence[OnHost], run: Run, session: Any) -> None:
        """Runs some of them, in creation order, on the values that the run has so far."""
        if run.outputs and self.pulled:
            wanted = {tensor.key for operation in operations for tensor in operation.inputs}
            found = {i: self._places[t.key] for i, t in enumerate(self.pulled) if t.key in wanted}
            values = [run.outputs[place] for place in found.values()]
            # One array is read faster than through a tree.
            read = [np.asarray(values[0])] if len(values) == 1 and _is_plain(values[0]) else jax.device_get(values)
            run.pulled.update(zip(found, read, strict=True))
        for operation in operations:
            given = [get(run) for get in self._arguments[operation]]
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

    def late_results(
        self, late: Sequence[Tensor | Operation], run: Run, session: Any, results: Callable[[], Any]
    ) -> LateResults:
        """Returns results that the run has not waited for.

        Args:
            late: What they are the results of.
            run: The run.
            session: The session.
            results: Gives them once the deferred operations have run.
        """

        def compute() -> Any:
            self.compute(self.deferred, run, session)
            return results()

        tensors = [*input_tensors(self.deferred, lambda tensor: True), *(e for e in late if isinstance(e, Tensor))]
        places = [self._places[tensor.key] for tensor in tensors if tensor.key in self._places]
        return LateResults(compute, jax.tree.leaves([run.outputs[place] for place in places]))


def _is_plain(value: Any) -> bool:
    return isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)


def _deferred(plan: Plan, awaited: Sequence[Tensor | Operation]) -> list[OnHost]:
    """Returns the host operations that need not run in the run itself."""
    needed = set(plan.needed(awaited))
    for operation in plan.operations:
        if isinstance(operation, SessionCall | Update):  # They belong into the run, and so does what they need.
            needed.update(plan.needed([operation]))
    return [operation for operation in plan.late if operation not in needed]
