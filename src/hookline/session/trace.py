"""Tracing: the operations of a program evaluated once, with tracers, in an order that the reading rule allows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from hookline.errors import InvalidArgumentError
from hookline.graph import spec as specs
from hookline.graph.gradient import between
from hookline.graph.tensor import Kind, Operation, Tensor, take_path
from hookline.graph.update import Update
from hookline.graph.variable import Variable
from hookline.session.plan import Key, Plan


class _Scope:
    """Values known at some place of a trace. Inside a gradient its sources stand before the outer values.

    Attributes:
        values: The value of each operation computed here.
        sources: What is differentiated, by (operation, path, version): either it takes the place of the value, or
            (`added`) it is a zero added to a value that itself depends on another source.
        added: Which sources are such zeros.
    """

    def __init__(self, outer: _Scope | None = None) -> None:
        self.values: dict[Operation, Any] = {}
        self.outer = outer
        self.sources: dict[tuple[Operation, tuple[Any, ...], int], Any] = {}
        self.added: set[tuple[Operation, tuple[Any, ...], int]] = set()

    def find(self, operation: Operation) -> Any:
        scope: _Scope | None = self
        while scope is not None:
            if operation in scope.values:
                return scope.values[operation]
            scope = scope.outer
        raise KeyError(operation)

    def source(self, tensor: Tensor, version: int) -> tuple[Any] | None:
        scope: _Scope | None = self
        while scope is not None:
            for depth in range(len(tensor.path) + 1) if scope.sources else ():
                key = (tensor.op, tensor.path[:depth], version)
                if key in scope.sources:
                    value = scope.sources[key]
                    if key in scope.added:
                        value = jax.tree.map(jnp.add, take_path(self.find(tensor.op), tensor.path[:depth]), value)
                    return (take_path(value, tensor.path[depth:]),)
            scope = scope.outer
        return None


class Trace:
    """One trace of a program: the values that its operations have, as JAX sees them.

    Args:
        plan: What to compute.
        watched: Keys of outputs that only hooks read.
        state: The values of variables before the run.
        inputs: Values handed in from outside, by tensor key.
    """

    def __init__(self, plan: Plan, watched: frozenset[Key], state: dict[Variable, Any], inputs: dict[Key, Any]) -> None:
        self.plan = plan
        self._watched = watched
        self._versions: dict[tuple[Variable, int], Any] = {(variable, 0): value for variable, value in state.items()}
        self._inputs = inputs
        self._scope = _Scope()
        self._barriered: dict[Any, Any] = {}
        self._paths = {o: self._path_of(o) for o in self.plan.device if o.kind is Kind.GRADIENTS}

    def _path_of(self, gradient: Operation) -> list[Operation]:
        ys, xs = gradient.bind(lambda tensor: tensor)
        needed = set(self.plan.device)
        return [operation for operation in between(ys, xs) if operation in needed]

    # Order ------------------------------------------------------------------------------------------------------

    def compute_all(self) -> None:
        """Computes all device operations in creation order.

        What lies inside a gradient waits for it: the gradient's forward pass computes it, once.
        """
        pending = self.plan.device
        while pending:
            left: list[Operation] = []
            missing: set[Operation] = set()
            inner = {o for gradient in pending for o in self._paths.get(gradient, ()) if o is not gradient}
            for operation in pending:
                if operation in self._scope.values:
                    continue
                waits = operation in inner or any(d in missing for d in self._order_dependencies(operation))
                if waits:
                    missing.add(operation)
                    left.append(operation)
                else:
                    self._scope.values[operation] = self._compute(operation, self._scope)
            if len(left) == len(pending):
                raise AssertionError(f"cannot order {left}")
            pending = left

    def _order_dependencies(self, operation: Operation) -> list[Operation]:
        path = set(self._paths.get(operation, ()))
        members = [operation, *path]
        found = [d for member in members for d in self.plan.dependencies(member) if d not in path]
        for member in members:
            for tensor in member.inputs:
                if tensor.op.kind is Kind.VARIABLE:
                    variable: Any = tensor.op.output
                    found += self.plan.updates.get(variable, [])[: self.plan.version(variable, member)]
        if isinstance(operation, Update):
            for variable in operation.variables:
                updates = self.plan.updates[variable]
                found += updates[: updates.index(operation)]
        return found

    # Values -----------------------------------------------------------------------------------------------------

    def arguments(self, update: Update) -> tuple[Any, ...]:
        """Returns the values to submit for an update that happens elsewhere; `None` for what is read there."""
        elsewhere = self.plan.is_read_elsewhere
        return tuple(
            None if elsewhere(tensor, update) else self._read(tensor, update, self._scope) for tensor in update.inputs
        )

    def final(self, variable: Variable) -> Any:
        """Returns the value of a written variable after the run."""
        return self._versions[variable, len(self.plan.updates[variable])]

    def output(self, tensor: Tensor) -> Any:
        """Returns the value of an output of the program."""
        value = self._read(tensor, None, self._scope)
        return self._behind_barrier(tensor, 0, value) if tensor.key in self._watched else value

    def _read(self, tensor: Tensor, reader: Operation | None, scope: _Scope) -> Any:
        is_variable = tensor.op.kind is Kind.VARIABLE
        version = self.plan.version(tensor.op.output, reader) if is_variable else 0  # type: ignore[arg-type]
        return self._value(tensor, version, reader, scope)

    def _value(self, tensor: Tensor, version: int, reader: Operation | None, scope: _Scope) -> Any:
        source = scope.source(tensor, version)
        if source is not None:
            return source[0]
        fed = self.plan.fed_place(tensor)
        if fed is not None:
            return take_path(self._inputs[tensor.op, tensor.path[: fed[1]]], tensor.path[fed[1] :])
        is_variable = tensor.op.kind is Kind.VARIABLE
        if (tensor.op, ()) in self._inputs:
            value = self._inputs[tensor.op, ()]
        elif is_variable:
            value = self._versions[tensor.op.output, version]  # type: ignore[index]
        elif tensor.op.kind is Kind.CONSTANT:
            assert tensor.op.fn is not None
            value = tensor.op.fn()
        elif tensor.op.kind is Kind.GROUP:
            value = None
        else:
            value = scope.find(tensor.op)
        value = take_path(value, tensor.path)
        if reader is not None and reader not in self.plan.trained and (is_variable or tensor.op in self.plan.trained):
            return self._behind_barrier(tensor, version, value)
        return value

    def _behind_barrier(self, tensor: Tensor, version: int, value: Any) -> Any:
        key = (tensor.key, version)
        if key not in self._barriered:
            self._barriered[key] = _barrier(value)
        return self._barriered[key]

    def _compute(self, operation: Operation, scope: _Scope) -> Any:
        try:
            if isinstance(operation, Update):
                return self._update(operation, scope)
            if operation.kind is Kind.GRADIENTS:
                return self._gradients(operation, scope)
            args, kwargs = self._bind(operation, scope)
            assert operation.fn is not None
            return operation.fn(*args, **kwargs)
        except Exception as error:
            operation.note(error)
            raise

    def _bind(self, operation: Operation, scope: _Scope) -> Any:
        # Each reader gets containers of its own: a function may change what it is given (Flax modules do), and their
        # objects belong to the trace that made them.
        return operation.bind(lambda tensor: jax.tree.map(lambda leaf: leaf, self._read(tensor, operation, scope)))

    def _update(self, operation: Update, scope: _Scope) -> Any:
        places = [self.plan.updates[variable].index(operation) for variable in operation.variables]
        olds = [
            None if operation.overwrites else self._versions[variable, place]
            for variable, place in zip(operation.variables, places, strict=True)
        ]
        args = self._bind(operation, scope)
        assert operation.fn is not None
        old = jax.tree.map(lambda leaf: leaf, jax.tree.unflatten(operation.structure, olds))
        news = operation.check_new(operation.fn(old, *args))
        kept = [_as_held(v, new) for v, new in zip(operation.variables, news, strict=True)]
        for variable, place, value in zip(operation.variables, places, kept, strict=True):
            self._versions[variable, place + 1] = value
        return jax.tree.unflatten(operation.structure, kept)

    def _gradients(self, operation: Operation, scope: _Scope) -> Any:
        ys, xs = operation.bind(lambda tensor: tensor)
        path = self._paths[operation]
        keys = [(x.op, x.path, self._version_on(path, x, operation)) for x in xs]
        # One of the xs may lie behind another: replacing its value would cut the other's way.
        added = {key for key in keys if key[0] in path}

        def forward(*values: Any) -> tuple[Any, list[Any]]:
            inside = _Scope(scope)
            inside.sources.update(zip(keys, values, strict=True))
            inside.added |= added
            for step in path:
                inside.values[step] = self._compute(step, inside)
            total = sum(jnp.sum(self._read(y, operation, inside)) for y in ys)
            return total, [inside.values[step] for step in path]

        # Only the shapes of what is computed here are used.
        shapes = _Scope(scope)
        for step in path if added else ():
            shapes.values[step] = self._compute(step, shapes)
        starts = [self._value(x, key[2], operation, shapes) for x, key in zip(xs, keys, strict=True)]
        starts = [
            jax.tree.map(jnp.zeros_like, start) if key in added else start
            for key, start in zip(keys, starts, strict=True)
        ]
        total, pull_back, computed = jax.vjp(forward, *starts, has_aux=True)
        scope.values.update(zip(path, computed, strict=True))
        # Gradients are what is watched most. They end in a barrier in every program, watched or not: XLA would
        # otherwise fuse them into the update where nobody watches, and round differently.
        return _barrier(pull_back(jnp.ones_like(total)))

    def _version_on(self, path: list[Operation], x: Tensor, gradient: Operation) -> int:
        """Returns which version of a variable the operations of a gradient's path read."""
        if x.op.kind is not Kind.VARIABLE:
            return 0
        variable: Any = x.op.output
        readers = [step for step in path if any(tensor.op is x.op for tensor in step.inputs)] or [gradient]
        versions = {self.plan.version(variable, reader) for reader in readers}
        if len(versions) > 1:
            names = ", ".join(repr(reader.name) for reader in readers)
            raise InvalidArgumentError(
                gradient.node_def,
                gradient,
                f"{gradient.node_def}: {variable.op.name!r} is read both before and after an update of this run, by "
                f"{names}; of which value is the gradient wanted? Make two runs of it.",
            )
        return versions.pop()


def _barrier(value: Any) -> Any:
    # Leaf by leaf: one barrier around all would keep them all alive until the last is there.
    return jax.tree.map(lambda leaf: jax.lax.optimization_barrier(leaf) if isinstance(leaf, Tracer) else leaf, value)


def _as_held(variable: Variable, value: Any) -> Any:
    """Returns the value with the dtypes that the variable holds."""

    def cast(leaf: Any, dtype: Any) -> Any:
        return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(leaf, dtype)

    if variable.spec is specs.UNKNOWN:
        return jax.tree.map(lambda leaf: cast(leaf, getattr(leaf, "dtype", None) or jnp.result_type(leaf)), value)
    return jax.tree.map(lambda leaf, spec: cast(leaf, spec.dtype), value, variable.spec)
