"""What `+`, `<`, `@` and the like do on tensors: each is `op` on the function of `jax.numpy`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from hookline.graph.ops import op
from hookline.graph.tensor import Tensor

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_COMPARISONS = ("lt", "le", "gt", "ge")
_UNARY = ("neg", "abs", "invert", "pos")

getitem = op(lambda x, index: x[index], name="getitem")


def _function(name: str) -> Callable[..., Any]:
    # The functions of `operator` are used, not those of jax.numpy, so that host values and pytrees that define an
    # operator of their own keep it.
    return getattr(operator, f"__{name}__")


def _forward(name: str) -> Callable[..., Tensor]:
    make = op(_function(name), name=name)
    return lambda self, *other: make(self, *other)


def _reflected(name: str) -> Callable[..., Tensor]:
    make = op(_function(name), name=name)
    return lambda self, other: make(other, self)


def install() -> None:
    """Gives `Tensor` its operators."""
    for name in (*_BINARY, *_COMPARISONS, *_UNARY):
        setattr(Tensor, f"__{name}__", _forward(name))
    for name in _BINARY:
        setattr(Tensor, f"__r{name}__", _reflected(name))
