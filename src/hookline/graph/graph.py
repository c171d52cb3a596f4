"""The graph: named operations in creation order, collections, scopes and the stack of default graphs."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookline.graph.spec import describe

if TYPE_CHECKING:
    from hookline.graph.tensor import Operation, Tensor

FINALIZED = "Graph is finalized and cannot be modified."


class Graph:
    """A computation described but not yet run: operations in the order in which they were made.

    Operations are added to the default graph of the calling thread, which `as_default` sets. A finalized graph can be
    run by any number of sessions and threads and refuses every addition.

    Args:
        seed: Seed from which the graph's random operations derive their keys.

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

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._operations: dict[str, Operation] = {}
        self._collections: dict[Hashable, list[Any]] = {}
        self._finalized = False
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}
        self._scopes = threading.local()

    # Building ---------------------------------------------------------------------------------------------------

    @property
    def finalized(self) -> bool:
        """Whether additions are refused."""
        return self._finalized

    def finalize(self) -> None:
        """Refuses every later addition with a `RuntimeError`; harmless when repeated."""
        self._finalized = True

    def reopen(self) -> None:
        """Allows additions again: a monitored session does so at its end for a graph that it found open."""
        self._finalized = False

    @property
    def version(self) -> int:
        """The number of operations made so far."""
        return len(self._operations)

    def check_open(self) -> None:
        """Raises `RuntimeError` if the graph is finalized."""
        if self._finalized:
            raise RuntimeError(FINALIZED)

    def register(self, operation: Operation) -> int:
        """Takes a new operation in and returns its place in the creation order. Called by `Operation` alone."""
        with self._lock:
            self.check_open()
            self._operations[operation.name] = operation
            return len(self._operations) - 1

    def unique_name(self, name: str) -> str:
        """Returns `name` inside the current name scope, numbered (`loss_1`) if it is taken, and takes it."""
        if not name or not all(c.isalnum() or c in "_.-/" for c in name):
            raise ValueError(f"{name!r} is not a name: use letters, digits and '_', '.', '-', '/'.")
        with self._lock:
            self.check_open()
            wanted = self.current_scope + name
            count = self._names.get(wanted, 0)
            self._names[wanted] = count + 1
            unique = wanted
            while count and unique in self._names:
                unique = f"{wanted}_{count}"
                count += 1
            self._names.setdefault(unique, 1)
            return unique

    # Scopes -----------------------------------------------------------------------------------------------------

    @property
    def current_scope(self) -> str:
        """The name scope of the calling thread: empty, or ending in a slash."""
        return getattr(self._scopes, "name", "")

    @property
    def current_control_inputs(self) -> tuple[Operation, ...]:
        """What every operation that this thread makes now will wait for."""
        return getattr(self._scopes, "control", ())

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Prefixes the names of operations made inside with `name/`, and yields the prefix.

        `None` leaves all scopes; a name that ends in a slash (a prefix yielded earlier) enters that scope again.
        """
        outer = self.current_scope
        if name and not name.endswith("/"):
            name = f"{self.unique_name(name)}/"
        self._scopes.name = name or ""
        try:
            yield self._scopes.name
        finally:
            self._scopes.name = outer

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Operation | Tensor] | None) -> Iterator[None]:
        """Makes every operation made inside run after the given ones, in addition to those of outer blocks.

        Args:
            control_inputs: Operations or tensors; `None` leaves all outer blocks.
        """
        outer = self.current_control_inputs
        if control_inputs is None:
            inner = ()
        else:
            elements = [self.as_graph_element(element) for element in control_inputs]
            inner = tuple(dict.fromkeys((*outer, *(getattr(element, "op", element) for element in elements))))
        self._scopes.control = inner
        try:
            yield
        finally:
            self._scopes.control = outer

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Makes this the default graph of the calling thread inside the `with` block."""
        stack = _stack()
        stack.append(self)
        try:
            yield self
        finally:
            stack.pop()

    # Collections ------------------------------------------------------------------------------------------------

    def add_to_collection(self, name: Hashable, value: Any) -> None:
        """Appends `value` to the collection `name`."""
        with self._lock:
            self.check_open()
            self._collections.setdefault(name, []).append(value)

    def get_collection(self, name: Hashable, scope: str | None = None) -> list[Any]:
        """Returns a copy of the collection `name`; with `scope`, the items whose names begin with it."""
        items = list(self._collections.get(name, ()))
        return [item for item in items if getattr(item, "name", "").startswith(scope)] if scope else items

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """Returns the collection itself: changing the list changes the graph."""
        with self._lock:
            return self._collections.setdefault(name, [])

    # Looking up -------------------------------------------------------------------------------------------------

    def get_operations(self) -> list[Operation]:
        """Returns all operations in creation order."""
        return list(self._operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """Returns the operation of that name; `KeyError` naming near ones if there is none."""
        try:
            return self._operations[name]
        except KeyError:
            import difflib

            near = difflib.get_close_matches(name, self._operations, n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"The graph has no operation {name!r}.{hint}") from None

    def get_tensor_by_name(self, name: str) -> Tensor:
        """Returns the tensor called `operation:0`."""
        operation, colon, output = name.rpartition(":")
        if not colon or output != "0":
            raise ValueError(f"{name!r} is not the name of a tensor: write {(operation or name) + ':0'!r}.")
        return self.get_operation_by_name(operation).output

    def as_graph_element(self, element: Any) -> Tensor | Operation:
        """Returns the tensor or operation that `element` is or names, and checks that it is of this graph.

        Raises:
            KeyError: Nothing has that name.
            ValueError: It belongs to another graph.
            TypeError: It is neither a tensor, an operation nor a name.
        """
        from hookline.graph.tensor import Operation, Tensor

        if isinstance(element, str):
            return self.get_tensor_by_name(element) if ":" in element else self.get_operation_by_name(element)
        if not isinstance(element, Tensor | Operation):
            raise TypeError(
                f"A tensor, an operation or the name of one is required, got {element!r} of type "
                f"{type(element).__name__}."
            )
        if element.graph is not self:
            raise ValueError(f"{element.name!r} belongs to another graph.")
        return element

    def as_text(self) -> str:
        """Returns a readable listing, one operation a line: name, type, inputs, control inputs and spec."""
        lines = []
        for operation in self._operations.values():
            inputs = [tensor.name for tensor in operation.inputs]
            inputs += [f"^{control.name}" for control in operation.control_inputs]
            lines.append(
                f"{operation.name} = {operation.type}({', '.join(inputs)}) : {describe(operation.output.spec)}"
            )
        return "\n".join(lines) + "\n"


_LOCAL = threading.local()


def _stack() -> list[Graph]:
    if not hasattr(_LOCAL, "stack"):
        _LOCAL.stack = []
        _LOCAL.bottom = Graph()
    return _LOCAL.stack


def get_default_graph() -> Graph:
    """Returns the default graph of the calling thread: the innermost `as_default`, else the thread's own."""
    stack = _stack()
    return stack[-1] if stack else _LOCAL.bottom


def reset_default_graph() -> None:
    """Gives the calling thread a new, empty default graph; an error inside `as_default`."""
    if _stack():
        raise RuntimeError("reset_default_graph must not be called inside a `with graph.as_default():` block.")
    _LOCAL.bottom = Graph()


def name_scope(name: str | None) -> Any:
    """`Graph.name_scope` of the default graph."""
    return get_default_graph().name_scope(name)


def control_dependencies(control_inputs: Iterable[Operation | Tensor] | None) -> Any:
    """`Graph.control_dependencies` of the default graph."""
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: Hashable, value: Any) -> None:
    """`Graph.add_to_collection` of the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(name: Hashable, scope: str | None = None) -> list[Any]:
    """`Graph.get_collection` of the default graph."""
    return get_default_graph().get_collection(name, scope)
