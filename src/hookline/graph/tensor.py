"""Operations, the nodes of a graph, and tensors, their values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import jax

from hookline.graph import spec as specs
from hookline.graph.graph import Graph, get_default_graph


class Kind(Enum):
    """Where and how an operation is carried out."""

    PLACEHOLDER = "Placeholder"
    CONSTANT = "Constant"
    VARIABLE = "Variable"
    DEVICE = "Op"
    HOST = "HostOp"
    UPDATE = "Update"
    GRADIENTS = "Gradients"
    SESSION = "SessionOp"
    GROUP = "Group"


def _user_location() -> str:
    """Returns `file:line` of the nearest caller outside this package, for messages about the operation made there."""
    package = __name__.partition(".")[0]
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Operation:
    """A node of the graph: a Python function of other nodes.

    Users make operations with `op`, `host_op`, `update` and the like, and use them as fetches and in
    `control_dependencies`.

    Attributes:
        name: Unique within the graph.
        type: The function's name, or the kind of node.
        inputs: Tensors whose values the function takes.
        control_inputs: Operations that come before this one.
        output: The tensor of its value. `outputs` is a list of this one.
        location: `file:line` of the code that made it.

    References:
        `tf.Operation`. An operation has exactly one output, which may be any pytree.
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        *,
        fn: Callable[..., Any] | None = None,
        args: Any = (),
        spec: Any = specs.UNKNOWN,
        type_name: str | None = None,
    ) -> None:
        self.graph: Graph = get_default_graph()
        self.graph.check_open()
        self.kind = kind
        self.fn = fn
        self.type = type_name or kind.value
        leaves, self._treedef = jax.tree.flatten(args)
        self._leaves: list[Any] = leaves
        self.inputs: list[Tensor] = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for tensor in self.inputs:
            if tensor.graph is not self.graph:
                raise ValueError(
                    f"{self.type} {name!r}: its argument {tensor.name!r} belongs to another graph than the default "
                    f"graph; build both inside the same `with graph.as_default():`."
                )
        self.control_inputs: tuple[Operation, ...] = self.graph.current_control_inputs
        self.location = _user_location()
        self.name = self.graph.unique_name(name)
        self.output = Tensor(self, spec=spec)
        self.index = self.graph.register(self)

    @property
    def outputs(self) -> list[Tensor]:
        """The value, as a list of one tensor."""
        return [self.output]

    @property
    def node_def(self) -> str:
        """What error messages call this node."""
        return f"{self.type} {self.name!r} (made at {self.location})"

    def bind(self, resolve: Callable[[Tensor], Any]) -> Any:
        """Returns the arguments with each tensor replaced by `resolve(tensor)`."""
        leaves = [resolve(leaf) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)

    def note(self, error: BaseException) -> None:
        """Names this operation on an error that its function raised, once."""
        note = f"hookline: while running {self.node_def}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def __repr__(self) -> str:
        return f"<hookline.Operation {self.name!r} type={self.type}>"


class Tensor:
    """The value of an operation, or a part of it: any pytree, known only when a session runs it.

    Arithmetic, comparison and indexing with tensors make new operations. Indexing with plain values, attributes and
    unpacking (`t["loss"]`, `t[0]`, `t.params`, `a, b = t`) are views: they add nothing to the graph and work on a
    finalized one. Equality and hashing go by identity.

    Attributes:
        op: The operation that computes it.
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

    def __init__(self, op: Operation, path: tuple[Any, ...] = (), spec: Any = specs.UNKNOWN) -> None:
        self.op = op
        self.path = path
        self.spec = spec

    @property
    def graph(self) -> Graph:
        """The graph it belongs to."""
        return self.op.graph

    @property
    def name(self) -> str:
        """`operation:0`; a view carries its path behind it."""
        return f"{self.op.name}:0" + "".join(_step_text(step) for step in self.path)

    @property
    def dtype(self) -> Any:
        """The dtype of an array value; `None` if it is unknown or the value is a larger structure."""
        return self.spec.dtype if specs.is_array(self.spec) else None

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of an array value, `None` for open dimensions; `None` if unknown or a larger structure."""
        return specs.open_shape(self.spec)

    @property
    def key(self) -> tuple[Operation, tuple[Any, ...]]:
        """What tells this value from all others: two views of the same part have the same key."""
        return (self.op, self.path)

    def _view(self, step: tuple[str, Any]) -> Tensor:
        spec = specs.UNKNOWN
        if self.spec is not specs.UNKNOWN:
            try:
                spec = take(self.spec, step)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise type(error)(f"{self.name}{_step_text(step)}: the value has no such part: {self.spec}") from None
        return Tensor(self.op, (*self.path, step), spec)

    def __getitem__(self, item: Any) -> Tensor:
        from hookline.graph.operators import getitem

        if any(isinstance(leaf, Tensor) for leaf in jax.tree.leaves(item)):
            return getitem(self, item)
        try:
            return self._view(("item", _freeze(item)))
        except _NotHashable:
            # A list or an array of indices cannot name a view.
            return getitem(self, item)

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or specs.is_array(self.__dict__.get("spec", specs.UNKNOWN)):
            raise AttributeError(f"A tensor has no attribute {name!r}.")
        return self._view(("attr", name))

    def __iter__(self) -> Iterator[Tensor]:
        if isinstance(self.spec, tuple | list):
            count = len(self.spec)
        elif specs.is_array(self.spec) and self.spec.shape and isinstance(self.spec.shape[0], int):
            count = self.spec.shape[0]
        else:
            raise TypeError(f"{self.name} cannot be unpacked: the number of its parts is not known; index it instead.")
        return iter([self[i] for i in range(count)])

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self.name} has no truth value before it is run. Use it inside hookline.op with jax.lax.cond or "
            f"jnp.where, or run it in a session first."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError(
            f"{self.name} has no value before it is run; wrap the NumPy function in hookline.op or host_op."
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<hookline.{type(self).__name__} {self.name!r} spec={self.spec}>"


def _freeze(item: Any) -> Any:
    """Makes an index hashable: a slice is kept as a tuple that `_thaw` undoes."""
    if isinstance(item, tuple):
        return ("#tuple", *(_freeze(part) for part in item))
    if isinstance(item, slice):
        return ("#slice", item.start, item.stop, item.step)
    try:
        hash(item)
    except TypeError as error:
        raise _NotHashable from error
    return item


class _NotHashable(Exception):
    """An index that cannot be part of a view's path."""


def _thaw(item: Any) -> Any:
    if isinstance(item, tuple) and item[:1] == ("#tuple",):
        return tuple(_thaw(part) for part in item[1:])
    if isinstance(item, tuple) and item[:1] == ("#slice",):
        return slice(*item[1:])
    return item


def _step_text(step: tuple[str, Any]) -> str:
    kind, value = step
    return f".{value}" if kind == "attr" else f"[{_thaw(value)!r}]"


def take(value: Any, step: tuple[str, Any]) -> Any:
    """Returns the part of a value, or of a spec, that one step of a view's path names."""
    kind, key = step
    if kind == "attr":
        return getattr(value, key)
    item = _thaw(key)
    return jax.eval_shape(lambda x: x[item], value) if specs.is_array(value) else value[item]


def take_path(value: Any, path: Sequence[tuple[str, Any]]) -> Any:
    """Returns the part of `value` at the end of a view's path."""
    for step in path:
        value = take(value, step)
    return value


def as_spec(argument: Any) -> Any:
    """Returns the spec of an argument of an operation: of a tensor its own, of a plain value the value itself."""
    return argument.spec if isinstance(argument, Tensor) else argument
