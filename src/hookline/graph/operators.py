"""What `+`, `<`, `@` and the like do with tensors, and why `float()` and the like refuse them.

Each operator makes an operation of the function of the same name.

The functions are those of Python's `operator`, not of `jax.numpy`, so that host values and pytrees that define an
operator of their own keep it.
"""

from __future__ import annotations

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
    """Something that has a name but no value yet, although Python, NumPy or JAX may ask for one."""

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
        # JAX looks for this in whatever it is given: that is where a user's mistake is seen. An operator of an array
        # (`_operator_mul(self, other)`) must be told that it does not know us, so that Python asks our reflected one,
        # and so must everybody else who looks.
        caller = sys._getframe(1)
        is_operator = caller.f_code.co_varnames[:2] == ("self", "other")
        if is_operator or not caller.f_globals.get("__name__", "").startswith("jax."):
            raise AttributeError("A tensor has no attribute '__jax_array__'.")
        # A TypeError would be taken for one of JAX's own and replaced.
        raise ValueError(self._advice())

    def __format__(self, format_spec: str) -> str:
        return self._no_value() if format_spec else repr(self)


class Operators(ABC, Generic[T]):
    """Operators whose results are of type `T`. Equality stays identity."""

    @abstractmethod
    def _operate(self, name: str, fn: Callable[..., Any], *operands: Any) -> T:
        """Returns the result that represents `fn(*operands)`."""

    def __add__(self, other: Any) -> T:
        return self._operate("add", _add, self, other)

    def __radd__(self, other: Any) -> T:
        return self._operate("add", _add, other, self)

    def __sub__(self, other: Any) -> T:
        return self._operate("sub", _sub, self, other)

    def __rsub__(self, other: Any) -> T:
        return self._operate("sub", _sub, other, self)

    def __mul__(self, other: Any) -> T:
        return self._operate("mul", _mul, self, other)

    def __rmul__(self, other: Any) -> T:
        return self._operate("mul", _mul, other, self)

    def __truediv__(self, other: Any) -> T:
        return self._operate("truediv", _truediv, self, other)

    def __rtruediv__(self, other: Any) -> T:
        return self._operate("truediv", _truediv, other, self)

    def __floordiv__(self, other: Any) -> T:
        return self._operate("floordiv", _floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> T:
        return self._operate("floordiv", _floordiv, other, self)

    def __mod__(self, other: Any) -> T:
        return self._operate("mod", _mod, self, other)

    def __rmod__(self, other: Any) -> T:
        return self._operate("mod", _mod, other, self)

    def __pow__(self, other: Any) -> T:
        return self._operate("pow", _pow, self, other)

    def __rpow__(self, other: Any) -> T:
        return self._operate("pow", _pow, other, self)

    def __matmul__(self, other: Any) -> T:
        return self._operate("matmul", _matmul, self, other)

    def __rmatmul__(self, other: Any) -> T:
        return self._operate("matmul", _matmul, other, self)

    def __and__(self, other: Any) -> T:
        return self._operate("and", _and, self, other)

    def __rand__(self, other: Any) -> T:
        return self._operate("and", _and, other, self)

    def __or__(self, other: Any) -> T:
        return self._operate("or", _or, self, other)

    def __ror__(self, other: Any) -> T:
        return self._operate("or", _or, other, self)

    def __xor__(self, other: Any) -> T:
        return self._operate("xor", _xor, self, other)

    def __rxor__(self, other: Any) -> T:
        return self._operate("xor", _xor, other, self)

    def __lshift__(self, other: Any) -> T:
        return self._operate("lshift", _lshift, self, other)

    def __rlshift__(self, other: Any) -> T:
        return self._operate("lshift", _lshift, other, self)

    def __rshift__(self, other: Any) -> T:
        return self._operate("rshift", _rshift, self, other)

    def __rrshift__(self, other: Any) -> T:
        return self._operate("rshift", _rshift, other, self)

    def __lt__(self, other: Any) -> T:
        return self._operate("lt", _lt, self, other)

    def __le__(self, other: Any) -> T:
        return self._operate("le", _le, self, other)

    def __gt__(self, other: Any) -> T:
        return self._operate("gt", _gt, self, other)

    def __ge__(self, other: Any) -> T:
        return self._operate("ge", _ge, self, other)

    def __neg__(self) -> T:
        return self._operate("neg", operator.neg, self)

    def __pos__(self) -> T:
        return self._operate("pos", operator.pos, self)

    def __abs__(self) -> T:
        return self._operate("abs", operator.abs, self)

    def __invert__(self) -> T:
        return self._operate("invert", operator.invert, self)


def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns `fn` for operands one of which may be a list: beside an array, the list becomes an array too."""

    def apply(left: Any, right: Any) -> Any:
        return fn(_beside(right, left), _beside(left, right))

    apply.__name__ = fn.__name__
    return apply


def _beside(other: Any, operand: Any) -> Any:
    if isinstance(operand, list | tuple) and isinstance(other, jax.Array | np.ndarray | np.generic):
        return jnp.asarray(operand)
    return operand


_add, _sub, _mul, _pow = (_binary(fn) for fn in (operator.add, operator.sub, operator.mul, operator.pow))
_truediv, _floordiv, _mod = (_binary(fn) for fn in (operator.truediv, operator.floordiv, operator.mod))
_and, _or, _xor = (_binary(fn) for fn in (operator.and_, operator.or_, operator.xor))
_lt, _le, _gt, _ge = (_binary(fn) for fn in (operator.lt, operator.le, operator.gt, operator.ge))
_matmul, _lshift, _rshift = (_binary(fn) for fn in (operator.matmul, operator.lshift, operator.rshift))
