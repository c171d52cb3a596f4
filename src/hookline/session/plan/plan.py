"""Plans: the operations that a run needs, their stages, and the version of each variable that each one reads.

A plan holds no values. It lists the host operations that run first, the operations of one device program with the
variables that they update, and the host operations that run last.

Example:
    `w` is 1 before the run. Operations in the order of their creation:

        1 add = w.assign_add(1)    2 twice = w * 2    3 set = w.assign(10), which waits for `twice`
        4 after = w + 0, which waits for `add`    5 last = w + 0, which waits for `set`

    Versions are numbers of updates in this run: version 0 is 1, version 1 (after 1) is 2, version 2 (after 3) is 10. A
    read sees the updates created up to the latest one that it depends on. So `twice` reads version 0 and is 2, although
    it was created after `add`; `after` reads version 1 and is 2; `last` reads version 2 and is 10, because `add` was
    created before `set`. A fetch of `w` itself is 1, and the next run finds 10. If only `twice` is fetched, the plan
    has no update. A host operation on `after` would be in stage AFTER. A device operation that needs its result is an
    error: a run has one device program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from hookline.errors import InvalidArgumentError, UnimplementedError
from hookline.graph.conditions import Guard, is_run_counter
from hookline.graph.gradient import Gradient
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.nodes.nodes import Group, HostCall, Placeholder, SessionCall, Source
from hookline.graph.nodes.views import Path
from hookline.graph.variable import Update, Variable, VariableRead, is_counter

TensorKey = tuple[Operation, tuple[Any, ...]]
HookTensors = tuple[Tensor, ...]
"""The device tensors that one hook fetches."""

HostOperation = HostCall | SessionCall
DeviceOperation = Function | Update | Gradient


class Stage(IntEnum):
    """The stage of a run in which an operation's value is computed."""

    BEFORE = 0
    DEVICE = 1
    AFTER = 2


class Plan:
    """The computation of some fetches from some feeds.

    Args:
        fetched: The caller's fetches.
        hook_fetches: The fetches of hooks.
        fed: The fed tensors.
        is_remote: Returns whether a variable lives in another process (`VariableStore.is_remote`).

    Attributes:
        fetched, fed: As above.
        updates: The updates of each variable in this process.
        remote_updates: The updates of remote variables. Their arguments are computed here, their results there.
        guards: The operations that can make a run skip its updates.
        before, after: The host operations that run before and after the program.
        pulled: The device inputs of the host operations after the program.

    Raises:
        InvalidArgumentError: A needed placeholder is not fed, or a device operation needs a host operation that needs a
            device value.
    """

    def __init__(
        self,
        fetched: Sequence[Tensor | Operation],
        hook_fetches: Sequence[Tensor | Operation],
        fed: Sequence[Tensor],
        is_remote: Callable[[Variable], bool] = lambda variable: False,
    ) -> None:
        self.fetched, self.fed = fetched, fed
        self._fed = {tensor.key: index for index, tensor in enumerate(fed)}
        self.operations = self.needed([*fetched, *hook_fetches])
        self.caller_operations = frozenset(self.needed(fetched))
        self.updates: dict[Variable, list[Update]] = {}
        self.remote_updates: list[Update] = []
        for operation in self.operations:
            if isinstance(operation, Update):
                if _is_remote_update(operation, is_remote):
                    self.remote_updates.append(operation)
                    continue
                for variable in operation.variables:
                    self.updates.setdefault(variable, []).append(operation)
        self.guards = [operation for operation in self.operations if isinstance(operation, Guard)]
        self._check_guards()
        self._is_remote = is_remote
        self._latest = self._latest_updates()
        self.stages = self._assign_stages()
        self.sources = [operation for operation in self.operations if isinstance(operation, Source)]
        self.before = [o for o in self.operations if isinstance(o, HostOperation) and self.stages[o] is Stage.BEFORE]
        self.after = [o for o in self.operations if isinstance(o, HostOperation) and self.stages[o] is Stage.AFTER]
        self.pulled = input_tensors(self.after, self.needs_device)
        submitted = set(self.remote_updates)
        self.device = [o for o in self.operations if isinstance(o, DeviceOperation) and o not in submitted]
        self._check_fed_views([e for e in (*fetched, *hook_fetches) if isinstance(e, Tensor)])
        self._check_reads()

    def with_hooks(self, hook_fetches: Sequence[Tensor | Operation]) -> Plan:
        """Returns the plan of the same fetches and feeds with other fetches of hooks."""
        return Plan(self.fetched, hook_fetches, self.fed, self._is_remote)

    # Needed operations ------------------------------------------------------------------------------------------

    def find_feed(self, tensor: Tensor) -> tuple[int, int] | None:
        """Returns (index of the feed, depth of the fed path) if `tensor` or a value that it is a view of is fed."""
        if self._fed:
            for depth in range(len(tensor.path), -1, -1):
                index = self._fed.get((tensor.op, tensor.path[:depth]))
                if index is not None:
                    return index, depth
        return None

    def dependencies(self, operation: Operation) -> Iterable[Operation]:
        """Returns the operations that this one depends on in this run."""
        for tensor in operation.inputs:
            if self.find_feed(tensor) is None:
                yield tensor.op
        yield from operation.control_inputs

    def needed(self, elements: Iterable[Tensor | Operation]) -> list[Operation]:
        """Returns the operations that these elements need, themselves included, in creation order."""
        needed: set[Operation] = set()
        pending = [e.op for e in elements if isinstance(e, Operation) or self.find_feed(e) is None]
        while pending:
            operation = pending.pop()
            if operation in needed:
                continue
            needed.add(operation)
            if isinstance(operation, Placeholder):
                raise InvalidArgumentError(
                    operation.node_def,
                    operation,
                    f"A value must be fed for the placeholder {operation.output.name!r} (made at "
                    f"{operation.location}): give feed_dict={{{operation.output.name!r}: ...}}.",
                )
            pending.extend(self.dependencies(operation))
        return sorted(needed, key=lambda operation: operation.index)

    @functools.cached_property
    def caller_paths(self) -> dict[Operation, set[Path]]:
        """The parts of operations' values that the caller's fetches need."""
        read: dict[Operation, set[Path]] = {}
        fetched = [element for element in self.fetched if isinstance(element, Tensor)]
        for tensor in (*fetched, *(tensor for operation in self.caller_operations for tensor in operation.inputs)):
            read.setdefault(tensor.op, set()).add(tensor.path)
        return read

    # Versions of variables --------------------------------------------------------------------------------------

    def _latest_updates(self) -> dict[Operation, dict[Variable, int]]:
        """Returns, for each operation, the index of the latest update of each variable that it depends on."""
        latest: dict[Operation, dict[Variable, int]] = {}
        # The same with the operation's own update, as operations that depend on it see it.
        seen: dict[Operation, dict[Variable, int]] = {}
        for operation in self.operations:
            merged: dict[Variable, int] = {}
            for dependency in self.dependencies(operation):
                for variable, index in seen[dependency].items():
                    merged[variable] = max(index, merged.get(variable, -1))
            latest[operation] = seen[operation] = merged
            if isinstance(operation, Update):
                seen[operation] = merged | dict.fromkeys(operation.variables, operation.index)
        return latest

    def version(self, variable: Variable, reader: Operation | None) -> int:
        """Returns the number of this run's updates of `variable` that the operation `reader` sees; 0 for a fetch."""
        updates = self.updates.get(variable)
        if not updates or reader is None:
            return 0
        if isinstance(reader, Gradient):
            return self._version_on_path(variable, reader)
        return self._version_at(variable, reader)

    def _version_at(self, variable: Variable, reader: Operation) -> int:
        latest = self._latest[reader].get(variable, -1)
        return sum(update.index <= latest for update in self.updates[variable])

    def _version_on_path(self, variable: Variable, gradient: Gradient) -> int:
        """Returns the version that a gradient's path reads, even if the gradient waits for later updates."""
        steps = [step for step in gradient.path if step in self._latest]
        parts = [x.path for x in gradient.xs if x.op is variable.op]
        readers = [
            step
            for step in steps
            if any(t.op is variable.op and any(_overlap(t.path, part) for part in parts) for t in step.inputs)
        ]
        versions = {self.version(variable, reader) for reader in readers} or {self._version_at(variable, gradient)}
        if len(versions) > 1:
            names = ", ".join(repr(reader.name) for reader in readers)
            raise InvalidArgumentError(
                gradient.node_def,
                gradient,
                f"{gradient.node_def}: {variable.op.name!r} is read both before and after an update of this run, by "
                f"{names}, so its gradient is not one value. Make two runs.",
            )
        return versions.pop()

    def is_remote_read(self, tensor: Tensor, reader: Operation) -> bool:
        """Returns whether `reader` reads a remote variable after an update of this run."""
        if not isinstance(tensor.op, VariableRead) or self.find_feed(tensor) is not None:
            return False
        # Not for a gradient: the operations on its path read the variable, and are checked themselves.
        variable = tensor.op.variable
        return self._is_remote(variable) and variable in self._latest[reader] and not isinstance(reader, Gradient)

    def _check_fed_views(self, fetched: Iterable[Tensor]) -> None:
        for part in self.fed:
            for tensor in (*fetched, *(t for o in self.operations for t in o.inputs)) if part.path else ():
                shorter = len(tensor.path) < len(part.path) and part.path[: len(tensor.path)] == tensor.path
                if tensor.op is part.op and shorter and self.find_feed(tensor) is None:
                    raise InvalidArgumentError(
                        part.op.node_def,
                        part.op,
                        f"{part.name!r} is fed, but this run needs the whole {tensor.name!r}: feed that.",
                    )

    def uses_remote_variables(self, read: Iterable[Variable]) -> bool:
        """Returns whether the run updates remote variables, or one of these variables is remote."""
        return bool(self.remote_updates) or any(map(self._is_remote, read))

    def _check_reads(self) -> None:
        if not self.remote_updates:
            return
        for operation in (*self.device, *self.before, *self.after):
            for tensor in operation.inputs:
                if self.is_remote_read(tensor, operation):
                    raise UnimplementedError(
                        operation.node_def,
                        operation,
                        f"{operation.node_def} reads {tensor.name!r} after an update of the same run, but the update "
                        f"happens on a parameter server. Read it in the next run, or inside hookline.update.",
                    )

    # Guards -------------------------------------------------------------------------------------------------------

    def is_guarded(self, variable: Variable) -> bool:
        """Returns whether a guard may skip the run's updates of a variable."""
        initialised = any(update.is_initializer for update in self.updates[variable])
        return bool(self.guards) and not initialised and not is_run_counter(variable)

    def _check_guards(self) -> None:
        for guard in (tensor.op for tensor in self.fed if isinstance(tensor.op, Guard)):
            raise InvalidArgumentError(
                guard.node_def, guard, f"{guard.node_def} cannot be fed: it skips updates. Feed its condition."
            )
        strict = [guard for guard in self.guards if guard.forbids_remote_updates]
        if strict and self.remote_updates:
            raise UnimplementedError(
                strict[0].node_def,
                strict[0],
                f"{strict[0].node_def} cannot skip {self.remote_updates[0].node_def}, which happens on a parameter "
                f"server. Leave out the values that are not finite in the update itself, with jnp.where.",
            )

    # Counters ---------------------------------------------------------------------------------------------------

    def is_host_known(self, variable: Variable) -> bool:
        """Returns whether the host knows the variable throughout the run: a counter, changed by known amounts."""
        return is_counter(variable) and self.counter_delta(variable) is not None

    def counter_delta(self, variable: Variable, version: int | None = None) -> int | None:
        """Returns the sum of the first `version` increments of a counter (by default of all); `None` if unknown."""
        increments = [update.increment for update in self.updates.get(variable, ())][:version]
        return None if None in increments else sum(i for i in increments if i is not None)

    # Stages -----------------------------------------------------------------------------------------------------

    def _assign_stages(self) -> dict[Operation, Stage]:
        stages: dict[Operation, Stage] = {}
        for operation in self.operations:
            stage = Stage.BEFORE
            for dependency in self.dependencies(operation):
                stage = max(stage, stages[dependency])
            if isinstance(operation, VariableRead):
                stage = Stage.BEFORE if self.is_host_known(operation.variable) else Stage.DEVICE
            elif isinstance(operation, HostOperation):
                stage = Stage.BEFORE if stage is Stage.BEFORE else Stage.AFTER
            elif isinstance(operation, DeviceOperation):
                if stage is Stage.AFTER and not self._waits_only_for_remote(operation, stages):
                    raise self._stage_error(operation, stages)
                stage = Stage.AFTER if operation in self.remote_updates else Stage.DEVICE
            stages[operation] = stage
        return stages

    def _waits_only_for_remote(self, operation: Operation, stages: dict[Operation, Stage]) -> bool:
        """Returns whether it needs operations of stage AFTER only to follow remote updates, not for their values."""

        def is_order(dependency: Operation) -> bool:
            if isinstance(dependency, Group):
                return all(stages[d] is not Stage.AFTER or is_order(d) for d in self.dependencies(dependency))
            return dependency in self.remote_updates

        values = {tensor.op for tensor in operation.inputs if self.find_feed(tensor) is None}
        after = [d for d in self.dependencies(operation) if stages[d] is Stage.AFTER]
        return all(d not in values and is_order(d) for d in after)

    def _stage_error(self, operation: Operation, stages: dict[Operation, Stage]) -> InvalidArgumentError:
        path = [operation]
        for tensor in operation.inputs:
            if tensor.op in self.remote_updates:
                return InvalidArgumentError(
                    operation.node_def,
                    operation,
                    f"{operation.node_def} uses the result of {tensor.op.name!r}, which is computed on a parameter "
                    f"server. Read the variable in the next run, or do it inside hookline.update.",
                )
        while not isinstance(path[-1], HostOperation):
            path.append(next(d for d in self.dependencies(path[-1]) if stages[d] is Stage.AFTER))
        path.append(next(d for d in self.dependencies(path[-1]) if stages[d] is not Stage.BEFORE))
        route = " <- ".join(repr(step.name) for step in path)
        return InvalidArgumentError(
            operation.node_def,
            operation,
            f"{operation.node_def} needs a host operation that itself needs a value from the device ({route}); a run "
            f"has one device program. Use jax.pure_callback inside an op, or run the two one after the other.",
        )

    def needs_device(self, tensor: Tensor) -> bool:
        """Returns whether the value of `tensor` comes from the device program."""
        if self.find_feed(tensor) is not None:
            return False
        return isinstance(tensor.op, DeviceOperation | VariableRead) and self.stages[tensor.op] is Stage.DEVICE


def _overlap(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Returns whether one of two views contains the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _is_remote_update(update: Update, is_remote: Callable[[Variable], bool]) -> bool:
    are_remote = {is_remote(variable) for variable in update.variables}
    if len(are_remote) > 1:
        raise InvalidArgumentError(
            update.node_def,
            update,
            f"{update.node_def} writes both shared variables and variables that each worker keeps for itself; make two "
            f"updates of it.",
        )
    return True in are_remote


def input_tensors(operations: Iterable[Operation], wanted: Callable[[Tensor], bool]) -> list[Tensor]:
    """Returns the distinct inputs of the operations that `wanted` selects, in order of appearance."""
    found: dict[TensorKey, Tensor] = {}
    for operation in operations:
        for tensor in operation.inputs:
            if wanted(tensor):
                found.setdefault(tensor.key, tensor)
    return list(found.values())
