"""The operators of tensors (`+`, `<`, `@`, ...), and the refusal of `float()` and other conversions.

Each operator makes an operation of the function of the same name.

The functions are those of Python's `operator`, not of `jax.numpy`, so that host values and pytrees that define an
operator of their own keep it.
"""

from __future__ import annotations

import functools
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


class NoValue(ABC):
    """An object with a name but no value yet, although Python, NumPy or JAX may ask for one."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages."""

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


def _left(fn: Callable[[Any, Any], Any]) -> Callable[[Operators[T], Any], T]:
    """Returns the method that represents `fn(self, other)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, self, other)


def _right(fn: Callable[[Any, Any], Any]) -> Callable[[Operators[T], Any], T]:
    """Returns the method that represents `fn(other, self)`."""
    fn = _binary(fn)
    return lambda self, other: self.operate(_name_of(fn), fn, other, self)


def _unary(fn: Callable[[Any], Any]) -> Callable[[Operators[T]], T]:
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


class Operators(ABC, Generic[T]):
    """Operators whose results are of type `T`. Equality stays identity."""

    @abstractmethod
    def operate(self, name: str, fn: Callable[..., Any], *operands: Any) -> T:
        """Returns the result that represents `fn(*operands)`."""

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
