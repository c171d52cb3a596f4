"""What looks at values on the way: `tf.Print`, `tf.Assert`, `tf.check_numerics`, `tf.assert_equal` and its kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hookline import graph as core
from hookline.compat.v1.nodes import argument, convert_to_tensor, node
from hookline.errors import InvalidArgumentError


def Print(
    input_: Any, data: Any, message: str | None = None, first_n: Any = None, summarize: Any = 3, name: Any = None
) -> Any:
    """Returns the tensor, and prints others to the standard error stream in each run that needs it.

    References:
        `tf.Print`.
    """
    left = [float("inf") if first_n is None or first_n < 0 else first_n]

    def show(*values: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            parts = (np.array2string(np.asarray(v).ravel()[:summarize], separator=" ") for v in values)
            print(message or "", *parts, sep="", file=sys.stderr)

    def printed(x: Any, values: Any) -> Any:
        jax.debug.callback(show, *values)
        return x

    return node(printed, name or "Print", {"x": argument(input_), "values": [argument(value) for value in data]})


def Assert(condition: Any, data: Any, summarize: Any = None, name: Any = None) -> Any:
    """Returns an operation that fails the run where the condition does not hold.

    References:
        `tf.Assert`. The session is lost with the run, as with any error on the device.
    """
    return _check(lambda holds, *_: holds, "assertion failed", (condition, *data), name or "Assert").op


def _check(holds: Callable[..., Any], what: str, operands: Any, name: str, message: Any = None) -> Any:
    """Returns the first operand, behind a check that is made in each run."""

    def check(*values: Any) -> None:
        if not np.all(holds(*values)):
            shown = "; ".join(np.array2string(np.asarray(value), threshold=6) for value in values)
            raise InvalidArgumentError(None, None, f"{name}: {message or what}: {shown}")

    def checked(values: Any) -> Any:
        jax.debug.callback(check, *values)
        return values[0]

    return node(checked, name, {"values": [argument(value) for value in operands]})


def check_numerics(tensor: Any, message: str, name: Any = None) -> Any:
    """Returns the tensor; a run in which it is not finite raises `InvalidArgumentError`.

    References:
        `tf.check_numerics`. A `NanTensorHook` costs less.
    """
    return _check(np.isfinite, "is not finite", (tensor,), name or "CheckNumerics", message)


def _compared(name: str, holds: Callable[..., Any]) -> Any:
    def check(x: Any, y: Any, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None) -> Any:
        return _check(holds, called, (x, y), name or called, message).op

    called = name
    check.__name__, check.__doc__ = name, f"`tf.{name}`."
    return check


def _signed(name: str, holds: Callable[..., Any]) -> Any:
    def check(x: Any, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None) -> Any:
        return _check(holds, called, (x,), name or called, message).op

    called = name
    check.__name__, check.__doc__ = name, f"`tf.{name}`."
    return check


def assert_rank(x: Any, rank: int, *args: Any, **kwargs: Any) -> Any:
    """`tf.assert_rank`: checked when the graph is built."""
    if convert_to_tensor(x).get_shape().ndims not in (None, rank):
        raise ValueError(f"assert_rank: rank {rank} is required, got {x.get_shape()}.")
    return core.no_op()


PUBLIC = {
    "Assert": Assert,
    "Print": Print,
    "assert_equal": _compared("assert_equal", np.equal),
    "assert_greater": _compared("assert_greater", np.greater),
    "assert_greater_equal": _compared("assert_greater_equal", np.greater_equal),
    "assert_less": _compared("assert_less", np.less),
    "assert_less_equal": _compared("assert_less_equal", np.less_equal),
    "assert_negative": _signed("assert_negative", lambda x: x < 0),
    "assert_non_negative": _signed("assert_non_negative", lambda x: x >= 0),
    "assert_none_equal": _compared("assert_none_equal", np.not_equal),
    "assert_positive": _signed("assert_positive", lambda x: x > 0),
    "assert_rank": assert_rank,
    "check_numerics": check_numerics,
    "verify_tensor_all_finite": check_numerics,
}
