"""The graph and its contents: operations, in creation order, and the tensors that are their values.

Graph, operation and tensor refer to one another, and a tensor's operators make functions of it, so they share a file.
Names, placement, views and operators have their own files.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from hookline import arguments
from hookline.graph import placement
from hookline.graph.front_end import FrontEnd, FrontEndObject, user_location
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.check import Check
from hookline.graph.nodes.views import Path, PathStep, Views, format_path_step, parse_path
from hookline.graph.registry import Registry, check_name
from hookline.signals.interrupts import calls_user_code

AnyGraph = TypeVar("AnyGraph", bound="Graph")


class InsideTraceError(TypeError):
    """A tensor was used inside a function that JAX is tracing, where its value is not available."""


class Graph(Registry):
    """The description of a computation: operations in the order in which they were made.

    Operations are added to the default graph of the calling thread, which `as_default` sets. A finalized graph can be
    run by any number of sessions and threads and refuses every addition.

    Args:
        seed: Seed from which the graph's random operations derive their keys.

    Attributes:
        front_end: Its behaviour towards users. A subclass may name another.
        default_sharding: The default sharding of arrays in its sessions, such as the global step: replicated over the
            mesh of its variables. None leaves it to JAX.
        mesh_context: A replicated sharding on the mesh in whose context operations are traced, as after `jax.set_mesh`:
            the mesh context in which the graph was built, or a mesh with explicit axes, which need one. Else None:
            functions may behave differently in a mesh context (Flax's do), so the graph traces like a hand-written
            loop.
        num_reshards: The number of times that variables were resharded because a step fixes other shardings for them.

    Example:
        >>> import hookline as hl
        >>> graph = hl.Graph()
        >>> with graph.as_default():
        ...     total = hl.op(lambda x: x + 2.0, name="total")(hl.constant(1.0))
        >>> graph.get_tensor_by_name("total:0") is total
        True
        >>> graph.finalize()

    References:
        `tf.Graph`. `reopen` is our addition.
    """

    front_end = FrontEnd()

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.default_sharding: jax.sharding.Sharding | None = None
        self.mesh_context: jax.sharding.Sharding | None = None
        self.num_reshards = 0
        self._is_global_default = False  # No sharding was given, and SPMD processes default to all devices of all.
        self._operations: dict[str, Operation] = {}
        self._control_local = threading.local()

    # Building ---------------------------------------------------------------------------------------------------

    def unique_name(self, name: str) -> str:
        """See `Registry`. A name that ends in a slash (a prefix that `name_scope` yielded) is the scope's own name."""
        base = arguments.check_str("Graph.unique_name", "name", name).removesuffix("/")
        return base if base != name and base not in self._operations else super().unique_name(base)

    @property
    def version(self) -> int:
        """The number of operations made so far."""
        return len(self._operations)

    def register(self, operation: Operation) -> int:
        """Adds a new operation and returns its index in creation order; only `Operation` calls it."""
        with self._lock:
            self.check_not_finalized(f"{operation.type} {operation.name!r}")
            self._operations[operation.name] = operation
            return len(self._operations) - 1

    @property
    def is_pristine(self) -> bool:
        """Whether it is empty and not finalized, and no block or scope of it is open."""
        is_empty = not (self._operations or self._collections)
        return is_empty and not (self.finalized or self.current_scope or self.current_control_inputs)

    def record_shardings(self, who: str, shardings: Iterable[Any]) -> None:
        """Records the shardings of arrays in its sessions, so that all other arrays go to the same devices.

        Raises:
            ValueError: JAX cannot compute with these shardings and the earlier ones together. The error begins with
                `who`.
        """
        known = None if self._is_global_default else self.default_sharding
        default = placement.default_sharding_for([known, *shardings], f"{who}: the graph it belongs to")
        if default is None and placement.is_spmd():
            default, self._is_global_default = jax.NamedSharding(placement.global_mesh(), jax.P()), True
        elif default is not None:
            self._is_global_default = False
            placement.check_spmd(who, default)
        self.default_sharding = default or self.default_sharding
        needed = self.default_sharding if placement.has_explicit_axes(self.default_sharding) else None
        self.mesh_context = self.mesh_context or placement.current_mesh_context() or needed

    # Scopes -----------------------------------------------------------------------------------------------------

    @property
    def current_control_inputs(self) -> tuple[Operation, ...]:
        """The control inputs of each operation that this thread makes now."""
        return getattr(self._control_local, "control", ())

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Operation | Tensor | str] | None) -> Iterator[None]:
        """Orders each operation made inside after the given ones, in addition to those of outer blocks.

        It orders nothing else: the initialisation of a variable made inside does not wait, and of a gradient made
        inside only the gradient itself waits (see `gradients`).

        Args:
            control_inputs: Operations, tensors, or names of them; `None` leaves all outer blocks.
        """
        outer = self.current_control_inputs
        if control_inputs is None:
            inner = ()
        elif isinstance(control_inputs, Operation | Tensor | str) or not isinstance(control_inputs, Iterable):
            raise TypeError(f"control_dependencies requires a list of operations or tensors, got {control_inputs!r}.")
        else:
            elements = [self.as_graph_element(element) for element in control_inputs]
            inner = tuple(dict.fromkeys((*outer, *(element.op for element in elements))))
        self._control_local.control = inner
        try:
            yield
        finally:
            self._control_local.control = outer

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Makes this the default graph of the calling thread inside the `with` block."""
        graphs = _thread.graphs
        graphs.append(self)
        try:
            yield self
        finally:
            graphs.pop()

    # Looking up -------------------------------------------------------------------------------------------------

    def get_operations(self) -> list[Operation]:
        """Returns all operations in creation order."""
        return list(self._operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """Returns the operation of that name; if there is none, a `KeyError` names similar ones."""
        arguments.check_str("Graph.get_operation_by_name", "name", name)
        try:
            return self._operations[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._operations, n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"The graph has no operation {name!r}.{hint}") from None

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Returns the tensor called `operation:0`, or a view of it (`gradients:0[0]`)."""
        operation, colon, output = arguments.check_str("Graph.get_tensor_by_name", "name", name).partition(":")
        path = parse_path(output[1:]) if colon and output[:1] == "0" else None
        if path is None:
            raise ValueError(f"{name!r} is not the name of a tensor: write {operation + ':0'!r}.")
        tensor = self.get_operation_by_name(operation).output
        for step in path:
            tensor = tensor._view(step)
        return tensor

    def as_graph_element(self, obj: Any) -> Tensor | Operation:
        """Returns `obj`, or the tensor or operation of that name, and checks that it belongs to this graph.

        Raises:
            KeyError: Nothing has that name.
            ValueError: It belongs to another graph.
            TypeError: It is neither a tensor, an operation nor a name.
        """
        if isinstance(obj, str):
            return self.get_tensor_by_name(obj) if ":" in obj else self.get_operation_by_name(obj)
        if not isinstance(obj, Tensor | Operation):
            raise TypeError(
                f"A tensor, an operation or the name of one is required, got {obj!r} of type {type(obj).__name__}."
            )
        if obj.graph is not self:
            raise ValueError(f"{obj.name!r} belongs to another graph.")
        return obj

    def as_text(self) -> str:
        """Returns a readable listing with one line for each operation: name, type, inputs, control inputs and spec."""
        lines = []
        for operation in self._operations.values():
            inputs = [tensor.name for tensor in operation.inputs]
            inputs += [f"^{control.name}" for control in operation.control_inputs]
            spec = specs.describe(operation.output.spec)
            lines.append(f"{operation.name} = {operation.type}({', '.join(inputs)}) : {spec}")
        return "\n".join(lines) + "\n"


class Operation(FrontEndObject):
    """A node of the graph.

    Users make operations with `op`, `host_op`, `update` and the like, and use them as fetches and in
    `control_dependencies`. The kind of a node is its class: `Function`, `Placeholder`, `Update`, ...

    Args:
        name: Its name; numbered if it is taken.
        args: Any pytree. The tensors in it are the operation's inputs.
        spec: The spec of its value, as far as it is known.

    Attributes:
        name: Unique within the graph.
        type: The kind of node; for a function, its name.
        inputs: Tensors whose values it takes.
        control_inputs: Operations that run before this one.
        op: The operation itself, so that operations and tensors both have `op`.
        output: The tensor of its value. `outputs` is a list of this one.
        host_only: Whether its value is text, or an object that no device holds.
        without_control_inputs: A copy without control inputs, if an initial value needs one.
        location: `file:line` of the code that made it.

    Example:
        >>> import hookline as hl
        >>> count = hl.Variable(0, name="count")
        >>> bump = count.assign_add(1).op
        >>> bump.name, bump.type, bump.output.name
        ('count/assign_add', 'Update', 'count/assign_add:0')

    References:
        `tf.Operation`. An operation has exactly one output, which may be any pytree.
    """

    type = "Operation"
    host_only = False
    supports_check = False
    _device_check: Check | None = None

    @classmethod
    def _graph_for(cls, *args: Any, **kwargs: Any) -> Graph:
        return get_default_graph()

    def __init__(self, name: str, args: Any = (), spec: Any = specs.UNKNOWN) -> None:
        check_name(name.removesuffix("/") if isinstance(name, str) else name)
        self.op, self.graph = self, get_default_graph()
        self._leaves, self._treedef = jax.tree.flatten(args)
        self.inputs = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        for leaf in self._leaves:
            self._check_argument(name, leaf)
        self.control_inputs = self.graph.current_control_inputs
        self.location = user_location(self.graph.front_end.hidden_modules)
        self.graph.check_not_finalized(f"{self.type} {self.graph.current_scope + name!r}")
        self.name = self.graph.unique_name(name)
        self.output = self._make_output(spec)
        self.without_control_inputs: Operation | None = None
        self.index = self.graph.register(self)

    def _make_output(self, spec: Any) -> Tensor:
        return Tensor(self, spec=spec)

    def _check_argument(self, name: str, leaf: Any) -> None:
        if isinstance(leaf, Tensor) and leaf.graph is not self.graph:
            raise ValueError(
                f"{self.type} {name!r}: its argument {leaf.name!r} belongs to another graph than the default graph; "
                f"build both inside the same `with graph.as_default():`."
            )
        if isinstance(leaf, Tracer):
            tensors = " and ".join(repr(tensor.name) for tensor in self.inputs) or "a node of the graph"
            raise InsideTraceError(
                f"{self.type} {name!r}: {tensors} is used inside a function that JAX is tracing, where it has no "
                f"value. Hand it to that function as an argument: hookline.op(fn)(..., tensor)."
            )

    @property
    def check(self) -> Check | None:
        """The check of its arguments on the device, if it has one; only functions and updates can have one."""
        return self._device_check

    @check.setter
    def check(self, check: Check | None) -> None:
        if not self.supports_check:
            raise TypeError(f"{self.node_def} cannot have a check: only functions and updates can.")
        self._device_check = check

    @property
    def outputs(self) -> list[Tensor]:
        """The value, as a list of one tensor."""
        return [self.output]

    @property
    def node_def(self) -> str:
        """The description of this node in error messages."""
        return f"{self.type} {self.name!r} (made at {self.location})"

    def bind(self, resolve: Callable[[Tensor], Any]) -> Any:
        """Returns the arguments with each tensor replaced by `resolve(tensor)`."""
        leaves = [resolve(leaf) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation | None:
        """Returns a copy of the operation with other input tensors; `None` if there can be only one of its kind."""
        return None

    def annotate_error(self, error: BaseException) -> None:
        """Adds this operation's name to an error that its function raised, once."""
        note = f"hookline: while running {self.node_def}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def __repr__(self) -> str:
        return f"<hookline.Operation {self.name!r} type={self.type}>"


class Function(Operation):
    """A node whose value is `fn(*args, **kwargs)`, traced by JAX; tensors may be nested in the arguments.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Function
        >>> node = Function(lambda x, scale: x * scale, "scaled", (hl.constant(3.0),), {"scale": 2.0})
        >>> with hl.Session() as sess:
        ...     print(node.name, sess.run(node.output))
        scaled 6.0
    """

    supports_check = True

    def __init__(self, fn: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None):
        self.fn = fn
        self.type = function_name(fn)
        for tensor in jax.tree.leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.op.host_only:
                raise TypeError(
                    f"{self.type} {name!r}: {tensor.name!r} holds text or an object, which no device can hold; use "
                    f"hookline.host_op for it."
                )
        super().__init__(name, (args, kwargs or {}))
        self.output.spec = self.infer_spec()

    @calls_user_code
    def call(self, resolve: Callable[[Tensor], Any]) -> Any:
        """Returns the function's result for the values that `resolve` gives for its tensors."""
        args, kwargs = self.bind(resolve)
        return self.fn(*args, **kwargs)

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation:  # noqa: D102
        args, kwargs = self.bind(resolve)
        return Function(self.fn, name, args, kwargs)

    def infer_spec(self) -> Any:
        """Returns the spec of its value."""
        # A function may declare it: tracing a large step takes seconds.
        if (known := getattr(self.fn, "result_spec", None)) is not None:
            return known

        def call(*values: Any) -> Any:
            remaining = iter(values)
            return self.call(lambda _: next(remaining))

        try:
            with placement.enter_mesh(self.graph.mesh_context):
                return specs.infer(call, [tensor.spec for tensor in self.inputs])
        except OverflowError as error:
            raise ValueError(
                f"{self.node_def}: a number does not fit into the dtype that JAX gives it: {error}"
            ) from None
        except Exception as error:
            self.annotate_error(error)
            raise


class Tensor(FrontEndObject, Views["Tensor"]):
    """The value of an operation, or a part of it: any pytree, known only when a session runs it.

    Arithmetic, comparison and indexing with tensors make new operations. Indexing with plain values, attributes and
    unpacking (`t["loss"]`, `t[0]`, `t.params`, `a, b = t`) are views: they add nothing to the graph and work on a
    finalized one. Equality and hashing go by identity.

    Attributes:
        op: The operation that computes it.
        graph: The graph it belongs to.
        key: The identity of this value: two views of the same part have the same key.
        spec: Pytree of `jax.ShapeDtypeStruct`, or `UNKNOWN`.

    Example:
        >>> import hookline as hl
        >>> pair = hl.op(lambda x: {"half": x / 2, "double": x * 2})(hl.constant(3.0))
        >>> with hl.Session() as sess:
        ...     print(sess.run(pair["double"]))
        6.0

    References:
        `tf.Tensor`. The value is a pytree, not only an array; views are our addition.
    """

    __array_priority__ = 100

    @classmethod
    def _graph_for(cls, *args: Any, **kwargs: Any) -> Graph:
        return args[0].graph if args and isinstance(args[0], Operation) else get_default_graph()

    def __init__(self, op: Operation, path: Path = (), spec: Any = specs.UNKNOWN) -> None:
        self.op, self.graph = op, op.graph
        self.path, self.spec = path, spec
        self.key = op, path

    @property
    def name(self) -> str:
        """`operation:0`; a view appends its path."""
        return f"{self.op.name}:0" + "".join(format_path_step(step) for step in self.path)

    @property
    def dtype(self) -> Any:
        """The dtype of an array value; `None` if it is unknown or the value is a larger structure."""
        if specs.is_array(self.spec):
            return self.spec.dtype
        return None if self.path else getattr(self.op, "dtype", None)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of an array value, `None` for open dimensions; `None` if unknown or a larger structure."""
        return specs.open_shape(self.spec)

    def convert_feed(self, value: Any) -> Any:
        """Returns the array for a fed value, before it is checked; a subclass may convert it."""
        return value

    def operate(self, name: str, fn: Callable[..., Any], *operands: Any) -> Tensor:  # noqa: D102
        return Function(fn, name, operands).output

    def _part(self, step: PathStep, spec: Any) -> Tensor:
        return Tensor(self.op, (*self.path, step), spec)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<hookline.{type(self).__name__} {self.name!r} spec={self.spec}>"


def ancestors(tensors: Iterable[Tensor]) -> set[Operation]:
    """Returns the operations that the tensors need for their values."""
    found: set[Operation] = set()
    pending = [tensor.op for tensor in tensors]
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending.extend(tensor.op for tensor in operation.inputs)
    return found


def contains_tensor(value: Any) -> bool:
    """Returns whether the pytree `value` contains a tensor.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import contains_tensor
        >>> contains_tensor([1, {"size": hl.constant(2)}]), contains_tensor([1, 2])
        (True, False)
    """
    return any(isinstance(leaf, Tensor) for leaf in jax.tree.leaves(value))


def function_name(fn: Callable[..., Any]) -> str:
    """Returns a name for a function: its own, or `op` if it has none (a lambda)."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if name.isidentifier() else "op"


TRACED_GRAPH: ContextVar[Graph | None] = ContextVar("TRACED", default=None)
"""The graph of the program that JAX is tracing in this thread.

It is not the default graph: a traced function adds nothing to it.
"""


class _Thread(threading.local):
    """The stack of a thread's default graphs: its own, then one for each open `as_default` block."""

    def __init__(self) -> None:
        self.graphs = [Graph()]


_thread = _Thread()


def get_default_graph() -> Graph:
    """Returns the default graph of the calling thread: the innermost `as_default`, else the thread's own.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default() as graph:
        ...     print(hl.get_default_graph() is graph)
        True
    """
    return _thread.graphs[-1]


def require_default_graph(kind: type[AnyGraph]) -> AnyGraph:
    """Returns the default graph, and checks that it is of class `kind`.

    If the thread's own default graph is untouched, a new graph of that class replaces it.

    Raises:
        TypeError: It is of another class.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import require_default_graph
        >>> class OwnGraph(hl.Graph): ...
        >>> hl.reset_default_graph()
        >>> require_default_graph(OwnGraph) is hl.get_default_graph()
        True
    """
    graph = get_default_graph()
    if len(_thread.graphs) == 1 and not isinstance(graph, kind) and graph.is_pristine:
        seed, graph = graph.seed, kind()
        graph.seed, _thread.graphs[0] = seed, graph
    if not isinstance(graph, kind):
        wanted, given = (f"{each.__module__}.{each.__qualname__}" for each in (kind, type(graph)))
        raise TypeError(
            f"The default graph must be a {wanted}, and is a {given}: build inside "
            f"`with {kind.__name__}().as_default():`."
        )
    return graph


def reset_default_graph() -> None:
    """Replaces the calling thread's default graph by an empty one; raises `RuntimeError` inside `as_default`.

    Example:
        >>> import hookline as hl
        >>> weight = hl.Variable(1.0, name="weight")
        >>> hl.reset_default_graph()
        >>> hl.global_variables()
        []
    """
    if len(_thread.graphs) > 1:
        raise RuntimeError("reset_default_graph must not be called inside a `with graph.as_default():` block.")
    _thread.graphs[0] = Graph()
