"""Tracing: evaluates the operations of a program once, with tracers, in creation order.

This order is enough: an operation depends on earlier ones only, and reads a version of a variable whose updates are
earlier, too. It is enough for gradients as well (see `tape`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph.gradient import Gradient
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Constant, Group
from hookline.graph.nodes.views import Path, PathStep, get_at_path, get_part
from hookline.graph.variable import Update, Variable, VariableRead
from hookline.session.plan.feeds import StaticArray
from hookline.session.plan.plan import Plan, TensorKey
from hookline.session.program.byproducts import isolate_byproducts
from hookline.session.program.tape import Cell, Cells, Tape, barrier


class Trace:
    """One trace of a program.

    Attributes:
        values: The values of its operations, as JAX sees them.
    """

    def __init__(
        self, plan: Plan, for_hooks: frozenset[TensorKey], old_values: dict[Variable, Any], inputs: dict[TensorKey, Any]
    ) -> None:
        self.plan = plan
        self._for_hooks = for_hooks
        self._versions: dict[tuple[Variable, int], Any] = {
            (variable, 0): value for variable, value in old_values.items()
        }
        self._inputs = inputs
        self.values: dict[Operation, Any] = {}
        self._failures: dict[Operation, Any] = {}
        self._barriered: dict[Any, Any] = {}
        self._tape = Tape([o for o in plan.device if isinstance(o, Gradient)], plan.caller_operations)
        self._cells: dict[Any, Cells] = {}

    def fork(self) -> Trace:
        """Returns a trace that continues this one, which stays unchanged."""
        other = copy.copy(self)
        for name in ("_versions", "values", "_failures", "_barriered", "_cells"):
            setattr(other, name, dict(getattr(self, name)))
        other._tape = self._tape.fork()
        return other

    def compute(self, operations: Sequence[Function | Update | Gradient]) -> None:
        """Computes device operations, in creation order."""
        for operation in operations:
            try:
                # Profiles and the text of the program then name the operation that each piece of work belongs to.
                with jax.named_scope(operation.name):
                    self.values[operation] = self._compute(operation)
                    self._check(operation)
            except Exception as error:
                operation.annotate_error(error)
                raise

    def _compute(self, operation: Function | Update | Gradient) -> Any:
        if isinstance(operation, Update):
            return self._update(operation)
        if isinstance(operation, Gradient):
            return self._gradient(operation)
        if self._tape.gradients_through(operation):
            return self._record_on_tape(operation)
        return self._call(operation)

    def _call(self, operation: Function) -> Any:
        """Calls a function; results that only hooks may read are isolated as by-products."""

        def call() -> Any:
            return operation.call(lambda tensor: _copy_containers(self._read(tensor, operation)))

        spec, declared = operation.output.spec, getattr(operation.fn, "main_parts", None)
        main = declared or self.plan.caller_paths.get(operation)
        if main is None or specs.is_array(spec) or (spec is specs.UNKNOWN and not declared):
            return call()
        return isolate_byproducts(call, lambda spec: _is_on_paths(main, spec))

    # Checks -----------------------------------------------------------------------------------------------------

    def _check(self, operation: Operation) -> None:
        """Checks an operation for invalid input, behind a barrier: the rest is compiled as without the check."""
        if operation.check is None:
            return
        is_remote_read = self.plan.is_remote_read

        def resolve(tensor: Tensor) -> Any:
            if is_remote_read(tensor, operation):
                return None
            return self._behind_barrier(tensor, self._version(tensor, operation), self._read(tensor, operation))

        self._failures[operation] = operation.check.row(operation.bind(resolve))

    def failures(self) -> dict[Operation, Any]:
        """Returns the results of the checks, by operation."""
        for update in self.plan.remote_updates:
            self._check(update)
        return self._failures

    # Values -----------------------------------------------------------------------------------------------------

    def arguments(self, update: Update) -> tuple[Any, ...]:
        """Returns the values to submit for a remote update; `None` for variables to be read there."""
        is_remote_read = self.plan.is_remote_read
        return tuple(None if is_remote_read(tensor, update) else self._read(tensor, update) for tensor in update.inputs)

    def final_value(self, variable: Variable) -> Any:
        """Returns the value of a written variable after the run."""
        return self._versions[variable, len(self.plan.updates[variable])]

    def skip_condition(self) -> Any:
        """Returns whether to skip the updates of the run; None without guards."""
        found = [self.values[guard] for guard in self.plan.guards]
        return functools.reduce(jnp.logical_or, found) if found else None

    def output(self, tensor: Tensor) -> Any:
        """Returns the value of an output of the program."""
        value = self._read(tensor, None)
        return self._behind_barrier(tensor, 0, value) if tensor.key in self._for_hooks else value

    def _read(self, tensor: Tensor, reader: Operation | None) -> Any:
        version = self._version(tensor, reader)
        (op, path), rest = self._root(tensor)
        value = get_at_path(self._value(op, path, version), rest)
        return self._behind_barrier(tensor, version, value) if self._reads_for_hook(reader, tensor) else value

    def _version(self, tensor: Tensor, reader: Operation | None) -> int:
        return self.plan.version(tensor.op.variable, reader) if isinstance(tensor.op, VariableRead) else 0

    def _root(self, tensor: Tensor) -> tuple[TensorKey, tuple[PathStep, ...]]:
        """Returns the key of the value that `tensor` views (a feed, or an operation's value), and the view's path."""
        fed = self.plan.find_feed(tensor)
        depth = fed[1] if fed is not None else 0
        return (tensor.op, tensor.path[:depth]), tensor.path[depth:]

    def _value(self, op: Operation, path: tuple[PathStep, ...], version: int) -> Any:
        if (op, path) in self._inputs:
            given = self._inputs[op, path]
            return given.array if isinstance(given, StaticArray) else given
        if isinstance(op, VariableRead):
            return self._versions[op.variable, version]
        if isinstance(op, Constant):
            return op.device_value()
        return None if isinstance(op, Group) else self.values[op]

    def _reads_for_hook(self, reader: Operation | None, tensor: Tensor) -> bool:
        """Returns whether `reader` runs only for a hook, and reads a value that exists without the hook."""
        caller_operations = self.plan.caller_operations
        if reader is None or reader in caller_operations or self.plan.find_feed(tensor) is not None:
            return False
        return isinstance(tensor.op, VariableRead) or tensor.op in caller_operations

    def _behind_barrier(self, tensor: Tensor, version: int, value: Any) -> Any:
        key = (tensor.key, version)
        if key not in self._barriered:
            self._barriered[key] = barrier(value)
        return self._barriered[key]

    # Updates ----------------------------------------------------------------------------------------------------

    def _update(self, operation: Update) -> Any:
        indices = [self.plan.updates[variable].index(operation) for variable in operation.variables]
        olds = [
            None if operation.overwrites else self._versions[variable, index]
            for variable, index in zip(operation.variables, indices, strict=True)
        ]
        args = operation.bind(lambda tensor: _copy_containers(self._read(tensor, operation)))
        old = _copy_containers(jax.tree.unflatten(operation.structure, olds))
        new_values = operation.check_new_values(operation.call(old, *args))
        kept = [_cast_to_variable(v, new) for v, new in zip(operation.variables, new_values, strict=True)]
        for variable, index, value in zip(operation.variables, indices, kept, strict=True):
            self._versions[variable, index + 1] = value
        return jax.tree.unflatten(operation.structure, kept)

    # Gradients --------------------------------------------------------------------------------------------------

    def _record_on_tape(self, operation: Function) -> Any:
        """Computes an operation so that the gradients whose path contains it can run backward through it."""
        passing = self._tape.gradients_through(operation)
        found: dict[TensorKey, Cells] = {}
        for tensor in operation.inputs:
            if any(gradient.depends_on_xs(tensor) for gradient in passing):
                found[tensor.key] = self._cells_of(tensor, self._version(tensor, operation))
        floating = list(
            dict.fromkeys(cell for cells in found.values() for cell in cells.leaves if cell.is_differentiable)
        )

        def fn(*values: Any) -> Any:
            given = dict(zip(floating, values, strict=True))

            def resolve(tensor: Tensor) -> Any:
                if tensor.key not in found:
                    return _copy_containers(self._read(tensor, operation))
                value = found[tensor.key].value(given)
                return barrier(value) if self._reads_for_hook(operation, tensor) else value

            return operation.call(resolve)

        return self._store_cells(operation, self._tape.record(operation, fn, floating))

    def _gradient(self, operation: Gradient) -> Any:
        ys = [self._cells_of(y, self._version(y, operation)) for y in operation.ys]
        cotangents = self._tape.backward(operation, [cell for y in ys for cell in y.leaves])

        def cotangent(cell: Cell) -> Cell:
            if not cell.is_differentiable:
                dtype = jnp.result_type(cell.value)
                raise TypeError(f"gradients: an array in xs has dtype {dtype}; it must be floating point.")
            given = cotangents.get(cell)
            if given is None:
                return Cell(jnp.zeros_like(cell.value))
            # Gradients are what hooks fetch most. They end in a barrier in every program: XLA would otherwise fuse
            # them into the update when no hook fetches them, and round differently.
            return self._tape.record(operation, barrier, [given]).leaves[0]

        xs = [self._cells_of(x, self._version(x, operation)) for x in operation.xs]
        grads = [cotangent(cell) for x in xs for cell in x.leaves]
        return self._store_cells(operation, Cells(grads, jax.tree.structure(tuple(x.value() for x in xs))))

    def _store_cells(self, operation: Operation, cells: Cells) -> Any:
        self._cells[(operation, ()), 0, ()] = cells
        return cells.value()

    def _cells_of(self, tensor: Tensor, version: int) -> Cells:
        """Returns the value of a tensor with a cell for each array; indexing of arrays is recorded on the tape."""
        root, rest = self._root(tensor)
        cells = self._cached_cells(root, version, (), lambda: Cells.of(self._value(*root, version)))
        for depth, step in enumerate(rest, start=1):
            whole = cells
            cells = self._cached_cells(root, version, rest[:depth], lambda w=whole, s=step: self._part(w, s))
        return cells

    def _cached_cells(
        self, root: TensorKey, version: int, path: Sequence[PathStep], make: Callable[[], Cells]
    ) -> Cells:
        key = (root, version, tuple(path))
        if key not in self._cells:
            self._cells[key] = make()
        return self._cells[key]

    def _part(self, cells: Cells, step: PathStep) -> Cells:
        """Returns the part at a step of a path: its cells, or the result of indexing an array or of a property."""
        leaves, treedef = jax.tree.flatten(get_part(cells.value(), step))
        owners = {id(cell.value): cell for cell in cells.leaves}
        is_found = all(id(leaf) in owners for leaf in leaves) and len(owners) == len(cells.leaves)
        if is_found and not jax.tree_util.treedef_is_leaf(cells.treedef):
            return Cells([owners[id(leaf)] for leaf in leaves], treedef)
        floating = [cell for cell in cells.leaves if cell.is_differentiable]
        return self._tape.record(
            None, lambda *v: get_part(cells.value(dict(zip(floating, v, strict=True))), step), floating
        )


def _is_on_paths(paths: Iterable[Path], spec: Any) -> list[bool]:
    """Returns for each array of a value whether one of these paths leads to it, or into it."""
    leaves, structure = jax.tree.flatten(spec)
    marks = [copy.copy(leaf) for leaf in leaves]
    numbers = {id(mark): number for number, mark in enumerate(marks)}
    found: set[int | None] = set()
    for path in paths:
        part = structure.unflatten(marks)
        for step in path:
            part = part if specs.is_array(part) else get_part(part, step)
        found |= {numbers.get(id(mark)) for mark in jax.tree.leaves(part)}
    # None: a property may have computed an array from any of them.
    return [None in found or number in found for number in range(len(leaves))]


def _copy_containers(value: Any) -> Any:
    # Each reader gets containers of its own: a function may change its arguments (Flax modules do), and their objects
    # belong to the trace that made them.
    return jax.tree.map(lambda leaf: leaf, value)


def _cast_to_variable(variable: Variable, value: Any) -> Any:
    """Returns the value with the dtypes that the variable holds."""

    def cast(leaf: Any, dtype: Any) -> Any:
        return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(leaf, dtype)

    if variable.spec is specs.UNKNOWN:
        return jax.tree.map(lambda leaf: cast(leaf, getattr(leaf, "dtype", None) or jnp.result_type(leaf)), value)
    return jax.tree.map(lambda leaf, spec: cast(leaf, spec.dtype), value, variable.spec)
