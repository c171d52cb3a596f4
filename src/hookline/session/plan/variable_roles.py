"""The roles of variables in a program: donated, counters, write-only, read-only, or counted by the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hookline.graph.conditions import is_run_counter
from hookline.graph.graph import Tensor
from hookline.graph.variable import Variable, VariableRead
from hookline.session.plan.plan import Plan, TensorKey


class VariableRoles:
    """The variables of a program, by their roles.

    Args:
        plan: The plan of the program.
        outputs: Its outputs.
        for_hooks: The keys of the outputs that only hooks read.

    Attributes:
        host_counters: The counters that only the host counts. They are not in the program.
        donated: The variables that it writes and whose old value it reads, without counters of runs or draws.
        counters: The counters of runs or draws that it writes and whose old value it reads.
        write_only: The variables that it writes without reading their old value.
        read_only: The variables that it only reads.
        caller_variables: The variables that it writes, or reads not only for hooks.
    """

    def __init__(self, plan: Plan, outputs: Sequence[Tensor], for_hooks: Collection[TensorKey]) -> None:
        self._plan, self._outputs = plan, outputs
        self.host_counters = self._counted_by_host()
        updates = [variable for variable in plan.updates if variable not in self.host_counters]
        self.read_only = [variable for variable in self._read_variables() if variable not in plan.updates]
        needed = [variable for variable in updates if self._needs_old_value(variable)]
        # Counters are not donated: that would save nothing, and a kept old value shows when a run is computed.
        self.donated = [variable for variable in needed if not is_run_counter(variable)]
        self.counters = [variable for variable in needed if is_run_counter(variable)]
        is_needed = set(needed)
        self.write_only = [variable for variable in updates if variable not in is_needed]
        self.caller_variables = [*updates, *self._read_by_callers(for_hooks)]

    def _read_variables(self) -> list[Variable]:
        read: dict[Variable, None] = {}
        tensors = [*self._outputs, *(tensor for operation in self._plan.device for tensor in operation.inputs)]
        for update in self._plan.remote_updates:
            tensors += [tensor for tensor in update.inputs if not self._plan.is_remote_read(tensor, update)]
        for tensor in tensors:
            if isinstance(tensor.op, VariableRead) and self._plan.find_feed(tensor) is None:
                read[tensor.op.variable] = None
        return list(read)

    def _counted_by_host(self) -> list[Variable]:
        """Returns the counters that only the host counts; none if the program would write nothing else."""
        plan, found = self._plan, []
        readers = [*plan.device, *plan.remote_updates]
        read = {tensor.op for tensor in (*self._outputs, *(t for reader in readers for t in reader.inputs))}
        for variable, updates in plan.updates.items():
            is_alone = all(len(update.variables) == 1 and update not in read for update in updates)
            if is_alone and variable.op not in read and plan.is_host_known(variable) and not plan.is_guarded(variable):
                found.append(variable)
        return found if len(found) < len(plan.updates) else []

    def _read_by_callers(self, for_hooks: Collection[TensorKey]) -> list[Variable]:
        """Returns the variables that are not read for hooks only."""
        operations = [operation for operation in self._plan.device if operation in self._plan.caller_operations]
        read = {t.op for operation in operations for t in operation.inputs}
        read |= {tensor.op for tensor in self._outputs if tensor.key not in for_hooks}
        return [variable for variable in (*self.read_only, *self.counters) if variable.op in read]

    def _needs_old_value(self, variable: Variable) -> bool:
        """Returns whether the program reads the value from before the run."""
        plan = self._plan
        if plan.is_guarded(variable) or not plan.updates[variable][0].overwrites:
            return True
        if any(t.op is variable.op for t in self._outputs):
            return True
        readers = [o for o in plan.device if any(tensor.op is variable.op for tensor in o.inputs)]
        return any(plan.version(variable, reader) == 0 for reader in readers)
