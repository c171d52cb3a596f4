"""Elementwise functions and comparisons of `tf.math`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1._machinery import subgradients
from hookline_tf1._machinery.op_definitions import computed_by
from hookline_tf1._rules.index_bounds import Divides


def _divided(x: Any, y: Any) -> Any:
    """Divides like Python 2: integer division for integers."""
    whole = jnp.issubdtype(jnp.result_type(x, y), jnp.integer)
    return jnp.floor_divide(x, y) if whole else jnp.true_divide(x, y)


_DIVISOR = (Divides("y", lambda x, y: x),)


@computed_by(subgradients.absolute)
def abs(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arccos)
def acos(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arccosh)
def acosh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arcsin)
def asin(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arcsinh)
def asinh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arctan)
def atan(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arctanh)
def atanh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.ceil)
def ceil(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.conj)
def conj(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.cos)
def cos(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.cosh)
def cosh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.scipy.special.digamma)
def digamma(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.scipy.special.erf)
def erf(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.scipy.special.erfc)
def erfc(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.exp)
def exp(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.expm1)
def expm1(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.floor)
def floor(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.isfinite)
def is_finite(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.isinf)
def is_inf(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.isnan)
def is_nan(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.scipy.special.gammaln)
def lgamma(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.log)
def log(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.log1p)
def log1p(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.log_sigmoid)
def log_sigmoid(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.logical_not)
def logical_not(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.reciprocal)
def reciprocal(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.rint)
def rint(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.lax.rsqrt)
def rsqrt(x: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.sigmoid)
def sigmoid(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.sign)
def sign(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.sin)
def sin(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.sinh)
def sinh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.sqrt)
def sqrt(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.square)
def square(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.tan)
def tan(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.tanh)
def tanh(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.negative, "Neg", twin=lambda x: -x)
def negative(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.round)
def round(x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.add, twin=np.add)
def add(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.subtract, "Sub", twin=np.subtract)
def subtract(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.multiply, "Mul", twin=np.multiply)
def multiply(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.true_divide, "truediv")
def divide(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.true_divide, "truediv")
def truediv(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(_divided, "div", twin=np.floor_divide, within=_DIVISOR)
def div(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, y: jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y)), "div_no_nan")
def div_no_nan(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.true_divide, "RealDiv")
def realdiv(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.floor_divide, "floordiv", twin=np.floor_divide, within=_DIVISOR)
def floordiv(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.floor_divide, twin=np.floor_divide, within=_DIVISOR)
def floor_div(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.mod, "FloorMod", twin=np.mod, within=_DIVISOR)
def mod(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.mod, "FloorMod", twin=np.mod, within=_DIVISOR)
def floormod(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.power)
def pow(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(subgradients.maximum, twin=np.maximum)
def maximum(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(subgradients.minimum, twin=np.minimum)
def minimum(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, y: jnp.square(x - y))
def squared_difference(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.arctan2)
def atan2(y: Any, x: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.equal)
def equal(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.not_equal)
def not_equal(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.less)
def less(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.less_equal)
def less_equal(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.greater)
def greater(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.greater_equal)
def greater_equal(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.logical_and)
def logical_and(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.logical_or)
def logical_or(x: Any, y: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.logical_xor)
def logical_xor(x: Any, y: Any, name: str | None = None) -> Any: ...
