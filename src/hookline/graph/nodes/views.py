"""Views: paths to parts of a value, and the indexing of tensors that makes them."""

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

PathStep = tuple[str, Any]
"""One step of a view's path: `("item", index)` or `("attr", name)`; hashable."""
Path = tuple[PathStep, ...]


def _binary_operator(fn: Callable[[Any, Any], Any]) -> Callable[[Views[T], Any], T]:
    """Returns the method that represents `fn(self, other)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, self, other)


def _reflected_operator(fn: Callable[[Any, Any], Any]) -> Callable[[Views[T], Any], T]:
    """Returns the method that represents `fn(other, self)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, other, self)


def _unary_operator(fn: Callable[[Any], Any]) -> Callable[[Views[T]], T]:
    return lambda self: self.operate(_name_of(fn), fn, self)


def _name_of(fn: Callable[..., Any]) -> str:
    return fn.__name__.rstrip("_")  # and_, or_


@functools.cache
def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns `fn` for operands that may be lists: beside an array, a list becomes an array, too."""

    def apply(left: Any, right: Any) -> Any:
        return fn(_match_operand(right, left), _match_operand(left, right))

    apply.__name__ = fn.__name__
    return apply


def _match_operand(other: Any, operand: Any) -> Any:
    if isinstance(operand, list | tuple) and isinstance(other, jax.Array | np.ndarray | np.generic):
        return jnp.asarray(operand)
    return operand


def freeze(item: Any) -> Any:
    """Makes an index hashable: a slice becomes a tuple, which `_thaw` undoes.

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


def format_path_step(step: PathStep) -> str:
    """Returns a step as text: `.params`, `['loss']`."""
    kind, value = step
    return f".{value}" if kind == "attr" else f"[{_thaw(value)!r}]"


def parse_path(text: str) -> Path | None:
    """Returns the path that `format_path_step` wrote; `None` if the text is not a path."""
    try:
        node = ast.parse(f"value{text}", mode="eval").body
    except SyntaxError:
        return None
    steps: list[PathStep] = []
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


def get_part(value: Any, step: PathStep) -> Any:
    """Returns the part of a value, or of a spec, at one step of a view's path."""
    kind, key = step
    if kind == "attr":
        return getattr(value, key)
    item = _thaw(key)
    return jax.eval_shape(lambda x: x[item], value) if specs.is_array(value) else value[item]


def get_at_path(value: Any, path: Sequence[PathStep]) -> Any:
    """Returns the part of `value` at the end of a view's path.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import get_at_path
        >>> sizes = hl.constant({"rows": 2, "columns": 3})
        >>> get_at_path({"rows": 4, "columns": 5}, sizes["columns"].path)
        5
    """
    for step in path:
        value = get_part(value, step)
    return value


class Views(ABC, Generic[T]):
    """A value that is not computed yet, so Python, NumPy and JAX cannot read it. Its parts are views of type `T`.

    Indexing with plain values, attributes and unpacking make views. Operators, and indexing with values that are not
    computed yet, make operations. Equality is identity.

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
    def _part(self, step: PathStep, spec: Any) -> T:
        """Returns the view of the part at a step, which has this spec."""

    def _view(self, step: PathStep) -> T:
        spec = specs.UNKNOWN
        if self.spec is not specs.UNKNOWN:
            try:
                spec = get_part(self.spec, step)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise type(error)(
                    f"{self.name}{format_path_step(step)}: the value has no such part: {self.spec}"
                ) from None
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

    __add__, __radd__ = _binary_operator(operator.add), _reflected_operator(operator.add)
    __sub__, __rsub__ = _binary_operator(operator.sub), _reflected_operator(operator.sub)
    __mul__, __rmul__ = _binary_operator(operator.mul), _reflected_operator(operator.mul)
    __truediv__, __rtruediv__ = _binary_operator(operator.truediv), _reflected_operator(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary_operator(operator.floordiv), _reflected_operator(operator.floordiv)
    __mod__, __rmod__ = _binary_operator(operator.mod), _reflected_operator(operator.mod)
    __pow__, __rpow__ = _binary_operator(operator.pow), _reflected_operator(operator.pow)
    __matmul__, __rmatmul__ = _binary_operator(operator.matmul), _reflected_operator(operator.matmul)
    __and__, __rand__ = _binary_operator(operator.and_), _reflected_operator(operator.and_)
    __or__, __ror__ = _binary_operator(operator.or_), _reflected_operator(operator.or_)
    __xor__, __rxor__ = _binary_operator(operator.xor), _reflected_operator(operator.xor)
    __lshift__, __rlshift__ = _binary_operator(operator.lshift), _reflected_operator(operator.lshift)
    __rshift__, __rrshift__ = _binary_operator(operator.rshift), _reflected_operator(operator.rshift)
    __lt__, __le__ = _binary_operator(operator.lt), _binary_operator(operator.le)
    __gt__, __ge__ = _binary_operator(operator.gt), _binary_operator(operator.ge)
    __neg__, __pos__ = _unary_operator(operator.neg), _unary_operator(operator.pos)
    __abs__, __invert__ = _unary_operator(operator.abs), _unary_operator(operator.invert)

    # Python, NumPy or JAX reads the value -----------------------------------------------------------------------

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
            f"hookline.host_op; inside such a function it must be one of its arguments."
        )

    # The methods that Python and NumPy call for a value.
    __float__ = __int__ = __complex__ = __index__ = __round__ = __array__ = _no_value

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX looks this up in each argument, so a tensor passed to a function of JAX is found here. An operator of an
        # array (`_operator_mul(self, other)`) must not find the attribute, so that Python calls the tensor's reflected
        # operator; nor must callers outside of JAX.
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
