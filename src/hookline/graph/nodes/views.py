"""Views: names of parts of a value, access to them, and the indexing of tensors that makes them."""

from __future__ import annotations

import ast
import functools
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph.nodes import spec as specs

T = TypeVar("T")

Step = tuple[str, Any]
"""One step of a view's path: `("item", index)` or `("attr", name)`; hashable."""
Path = tuple[Step, ...]


def _left(fn: Callable[[Any, Any], Any]) -> Callable[[Views[T], Any], T]:
    """Returns the method that represents `fn(self, other)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, self, other)


def _right(fn: Callable[[Any, Any], Any]) -> Callable[[Views[T], Any], T]:
    """Returns the method that represents `fn(other, self)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, other, self)


def _unary(fn: Callable[[Any], Any]) -> Callable[[Views[T]], T]:
    return lambda self: self.operate(_name_of(fn), fn, self)


def _name_of(fn: Callable[..., Any]) -> str:
    return fn.__name__.rstrip("_")  # and_, or_


@functools.cache
def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns `fn` for operands that may be lists: beside an array, a list becomes an array, too."""

    def apply(left: Any, right: Any) -> Any:
        return fn(_beside(right, left), _beside(left, right))

    apply.__name__ = fn.__name__
    return apply


def _beside(other: Any, operand: Any) -> Any:
    if isinstance(operand, list | tuple) and isinstance(other, jax.Array | np.ndarray | np.generic):
        return jnp.asarray(operand)
    return operand


def freeze(item: Any) -> Any:
    """Makes an index hashable: a slice is kept as a tuple, which `take` undoes.

    Raises:
        TypeError: It holds a list or an array.
    """
    if isinstance(item, tuple):
        return ("#tuple", *(freeze(part) for part in item))
    if isinstance(item, slice):
        return ("#slice", item.start, item.stop, item.step)
    hash(item)
    return item


def _thaw(item: Any) -> Any:
    if isinstance(item, tuple) and item[:1] == ("#tuple",):
        return tuple(_thaw(part) for part in item[1:])
    if isinstance(item, tuple) and item[:1] == ("#slice",):
        return slice(*item[1:])
    return item


def step_text(step: Step) -> str:
    """Returns a step as text: `.params`, `['loss']`."""
    kind, value = step
    return f".{value}" if kind == "attr" else f"[{_thaw(value)!r}]"


def parsed(text: str) -> Path | None:
    """Returns the path that `step_text` wrote; `None` if the text is not a path."""
    try:
        node = ast.parse(f"value{text}", mode="eval").body
    except SyntaxError:
        return None
    steps: list[Step] = []
    while not isinstance(node, ast.Name):
        try:
            if isinstance(node, ast.Attribute):
                steps.insert(0, ("attr", node.attr))
            elif isinstance(node, ast.Subscript):
                steps.insert(0, ("item", freeze(_literal(node.slice))))
            else:
                return None
        except (ValueError, TypeError):
            return None
        node = node.value
    return tuple(steps) if node.id == "value" else None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(part) for part in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice":
        return slice(*map(ast.literal_eval, node.args))
    return ast.literal_eval(node)


def take(value: Any, step: Step) -> Any:
    """Returns the part of a value, or of a spec, at one step of a view's path."""
    kind, key = step
    if kind == "attr":
        return getattr(value, key)
    item = _thaw(key)
    return jax.eval_shape(lambda x: x[item], value) if specs.is_array(value) else value[item]


def take_path(value: Any, path: Sequence[Step]) -> Any:
    """Returns the part of `value` at the end of a view's path."""
    for step in path:
        value = take(value, step)
    return value


class Views(ABC, Generic[T]):
    """A value that is not known yet, although Python, NumPy or JAX may ask for it. Its parts are views of type `T`.

    Indexing with plain values, attributes and unpacking make views. Operators, and indexing with such values, make
    operations; equality stays identity.

    Attributes:
        spec: As in `Tensor`.
    """

    spec: Any

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages."""

    @abstractmethod
    def operate(self, name: str, fn: Callable[..., Any], *operands: Any) -> T:
        """Returns the result that represents `fn(*operands)`."""

    @abstractmethod
    def _part(self, step: Step, spec: Any) -> T:
        """Returns the view of the part at a step, which has this spec."""

    def _view(self, step: Step) -> T:
        spec = specs.UNKNOWN
        if self.spec is not specs.UNKNOWN:
            try:
                spec = take(self.spec, step)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise type(error)(f"{self.name}{step_text(step)}: the value has no such part: {self.spec}") from None
        return self._part(step, spec)

    def __getitem__(self, item: Any) -> T:
        if not _is_computed(item):
            for part in item if isinstance(item, tuple) else (item,):
                if isinstance(part, slice) and _is_computed((part.start, part.stop, part.step)):
                    raise TypeError(
                        f"{self.name} is sliced with a tensor, but XLA must know the length: use "
                        f"hookline.op(jax.lax.dynamic_slice) with a fixed size."
                    )
            try:
                step = "item", freeze(item)
            except TypeError:
                pass  # a list or an array of indices cannot name a view
            else:
                return self._view(step)
        return self.operate("getitem", _getitem, self, item)

    def __getattr__(self, name: str) -> T:
        if name.startswith("_") or specs.is_array(self.__dict__.get("spec", specs.UNKNOWN)):
            raise AttributeError(f"A tensor has no attribute {name!r}.")
        return self._view(("attr", name))

    def __iter__(self) -> Iterator[T]:
        if isinstance(self.spec, tuple | list):
            count = len(self.spec)
        elif specs.is_array(self.spec) and self.spec.shape and isinstance(self.spec.shape[0], int):
            count = self.spec.shape[0]
        else:
            raise TypeError(f"{self.name} cannot be unpacked: the number of its parts is not known; index it instead.")
        return iter([self[i] for i in range(count)])

    def __len__(self) -> int:
        if specs.is_array(self.spec) and self.spec.shape and isinstance(self.spec.shape[0], int):
            return self.spec.shape[0]
        if isinstance(self.spec, tuple | list | dict):
            return len(self.spec)
        raise TypeError(f"The length of {self.name} is not known before it is run: {specs.describe(self.spec)}.")

    # Operators --------------------------------------------------------------------------------------------------

    __add__, __radd__ = _left(operator.add), _right(operator.add)
    __sub__, __rsub__ = _left(operator.sub), _right(operator.sub)
    __mul__, __rmul__ = _left(operator.mul), _right(operator.mul)
    __truediv__, __rtruediv__ = _left(operator.truediv), _right(operator.truediv)
    __floordiv__, __rfloordiv__ = _left(operator.floordiv), _right(operator.floordiv)
    __mod__, __rmod__ = _left(operator.mod), _right(operator.mod)
    __pow__, __rpow__ = _left(operator.pow), _right(operator.pow)
    __matmul__, __rmatmul__ = _left(operator.matmul), _right(operator.matmul)
    __and__, __rand__ = _left(operator.and_), _right(operator.and_)
    __or__, __ror__ = _left(operator.or_), _right(operator.or_)
    __xor__, __rxor__ = _left(operator.xor), _right(operator.xor)
    __lshift__, __rlshift__ = _left(operator.lshift), _right(operator.lshift)
    __rshift__, __rrshift__ = _left(operator.rshift), _right(operator.rshift)
    __lt__, __le__ = _left(operator.lt), _left(operator.le)
    __gt__, __ge__ = _left(operator.gt), _left(operator.ge)
    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(operator.abs), _unary(operator.invert)

    # Python, NumPy and JAX ask for the value --------------------------------------------------------------------

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self.name} has no truth value before it is run. Use it inside hookline.op with jax.lax.cond or "
            f"jnp.where, or run it in a session first."
        )

    def _no_value(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(self._advice())

    def _advice(self) -> str:
        return (
            f"{self.name} has no value before it is run. Run it in a session first, or give it to a function of "
            f"arrays through hookline.op (of jax.numpy: through hookline.numpy), or to any other through "
            f"hookline.host_op; inside of such a function it must have come in as an argument."
        )

    # The methods that Python and NumPy call for a value.
    __float__ = __int__ = __complex__ = __index__ = __round__ = __array__ = _no_value

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX looks for this in all its arguments: here a user's mistake is seen. An operator of an array
        # (`_operator_mul(self, other)`) must be told that tensors are unknown to it, so that Python calls their
        # reflected operator, and so must all other callers.
        caller = sys._getframe(1)
        is_operator = caller.f_code.co_varnames[:2] == ("self", "other")
        if is_operator or not caller.f_globals.get("__name__", "").startswith("jax."):
            raise AttributeError("A tensor has no attribute '__jax_array__'.")
        # JAX would replace a TypeError by one of its own.
        raise ValueError(self._advice())

    def __format__(self, format_spec: str) -> str:
        return self._no_value() if format_spec else repr(self)


def _is_computed(index: Any) -> bool:
    """Returns whether an index contains a value that is not known yet."""
    return any(isinstance(leaf, Views) for leaf in jax.tree.leaves(index))


def _getitem(value: Any, index: Any) -> Any:
    return value[index]
