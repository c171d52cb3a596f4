"""Programs: the device stage of a plan as one function, traced and compiled by JAX."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from hookline.graph import spec as specs
from hookline.graph.gradient import between
from hookline.graph.random import WORKER_INDEX
from hookline.graph.tensor import Kind, Operation, Tensor, take_path
from hookline.graph.variable import Update, Variable
from hookline.session.plan import Plan

logger = logging.getLogger(__name__)

_LARGE_BYTES = 32 * 2**20
_MEMORY_FIRST = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

Flat = tuple[tuple[jax.Array, ...], ...]


class Program:
    """One compiled program: (values of variables, inputs) to (new values, outputs).

    Variables travel flattened: a step then never rebuilds the user's trees. What is written is donated.

    Args:
        plan: What to compute.
        inputs: Tensors whose values are handed in: fed, from the host, or large constants.
        outputs: Tensors that the caller or a host operation reads.
        watched: Tensors that only hooks read. They are computed behind an optimization barrier, so that XLA compiles
            the rest as if nobody were watching.
        structure: Gives the tree structure of a variable at the time of tracing.
        worker_index: The worker for whose random keys it is made.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        watched: Sequence[Tensor],
        structure: Callable[[Variable], Any],
        worker_index: int = 0,
    ) -> None:
        self.plan = plan
        self.worker_index = worker_index
        self.inputs = list(inputs)
        self.outputs = [*outputs, *watched]
        self.watched = frozenset(tensor.key for tensor in watched) - {tensor.key for tensor in outputs}
        self.written = list(plan.updates)
        reads = [v for v in self._read_variables() if v not in plan.updates]
        self.taken = [v for v in self.written if self._needs_old(v)]
        self.kept = reads
        self.structure_in = structure
        self.structures_out: list[Any] = []
        self._traces = 0
        self._compiler_options = _compiler_options([*self.written, *self.kept])
        self.run = jax.jit(self._trace, donate_argnums=0, compiler_options=self._compiler_options)
        self._dry: Any = None

    @property
    def dry(self) -> Any:
        """The same program with nothing donated: for a run whose updates may have to be thrown away."""
        if self._dry is None:
            self._dry = jax.jit(self._trace, compiler_options=self._compiler_options)
        return self._dry

    def _read_variables(self) -> list[Variable]:
        read: dict[Variable, None] = {}
        tensors = [*self.outputs, *(tensor for operation in self.plan.device for tensor in operation.inputs)]
        for update in self.plan.remote:
            tensors += [tensor for tensor in update.inputs if not self.plan.is_read_elsewhere(tensor, update)]
        for tensor in tensors:
            if tensor.op.kind is Kind.VARIABLE and self.plan.fed_place(tensor) is None:
                read[tensor.op.output] = None  # type: ignore[index]
        return list(read)

    def _needs_old(self, variable: Variable) -> bool:
        """Whether the program looks at the value from before the run."""
        if not self.plan.updates[variable][0].overwrites or any(t.op is variable.op for t in self.outputs):
            return True
        readers = [o for o in self.plan.device if any(tensor.op is variable.op for tensor in o.inputs)]
        return any(self.plan.version(variable, reader) == 0 for reader in readers)

    def _trace(self, taken: Flat, kept: Flat, inputs: tuple[Any, ...]) -> tuple[Flat, tuple[Any, ...], tuple[Any, ...]]:
        self._log()
        token = WORKER_INDEX.set(self.worker_index)
        try:
            return self._traced(taken, kept, inputs)
        finally:
            WORKER_INDEX.reset(token)

    def _traced(
        self, taken: Flat, kept: Flat, inputs: tuple[Any, ...]
    ) -> tuple[Flat, tuple[Any, ...], tuple[Any, ...]]:
        values = [*zip(self.taken, taken, strict=True), *zip(self.kept, kept, strict=True)]
        state = {variable: jax.tree.unflatten(self.structure_in(variable), leaves) for variable, leaves in values}
        frame = _Frame(self, state, inputs)
        frame.compute_all()
        # No output may share its buffer with a variable, with an input or with another output.
        seen = {id(leaf) for leaf in jax.tree.leaves((taken, kept, inputs))}

        def distinct(leaf: Any) -> Any:
            if id(leaf) in seen or not isinstance(leaf, Tracer):
                leaf = jnp.copy(leaf)
            seen.add(id(leaf))
            return leaf

        new: list[tuple[Any, ...]] = []
        self.structures_out = []
        for variable in self.written:
            leaves, structure = jax.tree.flatten(frame.final(variable))
            new.append(tuple(distinct(leaf) for leaf in leaves))
            self.structures_out.append(structure)
        outputs = tuple(self._output(tensor, frame.output(tensor), distinct) for tensor in self.outputs)
        sent = tuple(frame.arguments(update) for update in self.plan.remote)
        return tuple(new), outputs, sent

    def _output(self, tensor: Tensor, value: Any, distinct: Callable[[Any], Any]) -> Any:
        try:
            return jax.tree.map(distinct, value)
        except TypeError as error:
            tensor.op.note(error)
            raise

    def _log(self) -> None:
        # The body of a traced function runs when JAX compiles, and only then.
        self._traces += 1
        names = ", ".join(tensor.name for tensor in self.outputs) or "none"
        writes = ", ".join(variable.op.name for variable in self.written) or "none"
        cause = "first run" if self._traces == 1 else "the shapes of its inputs changed"
        watching = " and what hooks watch" if self.watched else ""
        logger.info("Compiling a program (%s): outputs %s%s; writes %s.", cause, names, watching, writes)


def _compiler_options(variables: Sequence[Variable]) -> dict[str, Any] | None:
    """Returns how XLA is to order the work of a program on large variables.

    On CPU its default order keeps intermediate copies of a large model alive (four of a bfloat16 one while it is
    initialised, two in a step). The other order gives the same bits, and is no slower where every piece is large.
    """
    leaves = [leaf for v in variables if v.spec is not specs.UNKNOWN for leaf in jax.tree.leaves(v.spec)]
    known = [leaf for leaf in leaves if all(isinstance(dim, int) for dim in leaf.shape)]
    if sum(leaf.size * leaf.dtype.itemsize for leaf in known) < _LARGE_BYTES or jax.default_backend() != "cpu":
        return None
    return _MEMORY_FIRST if _accepts_memory_first() else None


@functools.cache
def _accepts_memory_first() -> bool:
    """Whether this XLA has the option: it refuses to compile with one that it does not know."""
    try:
        jax.jit(lambda: 0, compiler_options=_MEMORY_FIRST).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


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


class _Frame:
    """One trace of a program."""

    def __init__(self, program: Program, state: dict[Variable, Any], inputs: tuple[Any, ...]) -> None:
        self.plan = program.plan
        self._watched = program.watched
        self._versions: dict[tuple[Variable, int], Any] = {(variable, 0): value for variable, value in state.items()}
        self._inputs = {t.key: value for t, value in zip(program.inputs, inputs, strict=True)}
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
        return self._versions[variable, len(self.plan.updates[variable])]

    def output(self, tensor: Tensor) -> Any:
        value = self._read(tensor, None, self._scope)
        return self._behind_barrier(tensor, 0, value) if tensor.key in self._watched else value

    def _read(self, tensor: Tensor, reader: Operation | None, scope: _Scope) -> Any:
        is_variable = tensor.op.kind is Kind.VARIABLE
        version = self.plan.version(tensor.op.output, reader) if is_variable else 0  # type: ignore[arg-type]
        source = scope.source(tensor, version)
        if source is not None:
            return source[0]
        fed = self.plan.fed_place(tensor)
        if fed is not None:
            return take_path(self._inputs[tensor.op, tensor.path[: fed[1]]], tensor.path[fed[1] :])
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
        keys = [
            (x.op, x.path, self.plan.version(x.op.output, operation) if x.op.kind is Kind.VARIABLE else 0) for x in xs
        ]
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
        starts = [self._read(x, operation, shapes) for x in xs]
        starts = [
            jax.tree.map(jnp.zeros_like, start) if key in added else start
            for key, start in zip(keys, starts, strict=True)
        ]
        total, pull_back, computed = jax.vjp(forward, *starts, has_aux=True)
        scope.values.update(zip(path, computed, strict=True))
        # Gradients are what is watched most. They end in a barrier in every program, watched or not: XLA would
        # otherwise fuse them into the update where nobody watches, and round differently.
        return _barrier(pull_back(jnp.ones_like(total)))


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
