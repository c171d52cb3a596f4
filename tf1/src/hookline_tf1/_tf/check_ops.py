"""Checks of values in a run: `tf.Print`, `tf.Assert`, `tf.check_numerics`, `tf.assert_equal` and the like.

A failed check cancels the updates of its run, and the run raises `InvalidArgumentError` instead of returning.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import Graph, Operation, Tensor, group, no_op
from hookline.errors import InvalidArgumentError
from hookline.extend import Function, Guard
from hookline_tf1 import math
from hookline_tf1._machinery.dtypes import as_dtype
from hookline_tf1._machinery.graphs import control_dependencies, get_default_graph, name_scope
from hookline_tf1._machinery.nodes import argument, convert_to_tensor, node
from hookline_tf1._rules import host_strings

_SHOWN = 3


def Print(
    input_: Any, data: Any, message: str | None = None, first_n: Any = None, summarize: Any = 3, name: Any = None
) -> Any:
    """Returns the tensor, and prints others to standard error in each run that needs it.

    References:
        `tf.Print`.
    """
    left = [float("inf") if first_n is None or first_n < 0 else first_n]
    fixed, values = _apart(data)

    def show(*found: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            parts = _joined(fixed, found, lambda v: np.array2string(v.ravel()[:summarize], separator=" "))
            print(message or "", *parts, sep="", file=sys.stderr)

    def printed(x: Any, values: Any) -> Any:
        jax.debug.callback(show, *values)
        return x

    return node(printed, name or "Print", {"x": argument(input_), "values": values})


def _apart(data: Sequence[Any]) -> tuple[list[str | None], list[Any]]:
    """Splits the data of a message into its strings, with None in place of values, and the values."""
    fixed: list[str | None] = []
    values = []
    for item in data:
        if isinstance(item, str | bytes):
            fixed.append(item.decode() if isinstance(item, bytes) else item)
        elif host_strings.is_text(item):
            # Strings stay on the host, and checks are computed on the device.
            value = getattr(item.op, "value", None)
            fixed.append(item.name if value is None else host_strings.as_word(value))
        else:
            fixed.append(None)
            values.append(argument(item))
    return fixed, values


def _joined(fixed: Sequence[str | None], values: Sequence[Any], shown: Callable[[Any], str]) -> list[str]:
    rest = iter(values)
    return [f"[{text}]" if text is not None else shown(np.asarray(next(rest))) for text in fixed]


def _few(value: Any, summarize: int) -> str:
    flat = value.ravel()
    words = [f"{item:g}" if isinstance(item, np.floating) else str(item) for item in flat[:summarize]]
    return f"[{' '.join(words)}{'...' if flat.size > summarize else ''}]"


class Check(Guard):
    """The node of a check: true if it has failed, so that the run changes nothing."""

    # As in TensorFlow, a check raises an error but cancels no update on a parameter server.
    forbids_remote_updates = False

    def __init__(self, failed: Any, name: str) -> None:
        super().__init__(failed, name)
        self.type = "Assert"

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Check:
        """See `Operation.copy_with_inputs`."""
        ((failed,), _) = self.bind(resolve)
        return Check(failed, name)


def _failures(graph: Graph) -> deque[InvalidArgumentError]:
    """Returns the failures of a graph's checks since the last call."""
    return vars(graph).setdefault("failures", deque())


def raise_failed(graph: Graph) -> None:
    """Raises the first failure of a check in the run, once the device has computed it.

    Raises:
        InvalidArgumentError: A check has failed.
    """
    failures = vars(graph).get("failures")
    if failures is None:
        return
    jax.effects_barrier()
    if failures:
        failed = failures.popleft()
        failures.clear()
        raise failed


def _check(
    holds: Callable[..., Any], operands: Sequence[Any], name: str, shown: Sequence[Any], message: Callable[..., str]
) -> Check:
    """Adds a check to the default graph.

    Args:
        holds: Returns, for the operands as JAX arrays, whether the check passes.
        operands: Tensors and plain values.
        name: Name of the operation.
        shown: The values in an error's message, without its strings.
        message: Returns the error's message for the values of `shown`.
    """
    failures, made = _failures(get_default_graph()), []

    def note(*values: Any) -> None:
        failures.append(InvalidArgumentError(made[0].node_def, made[0], message(*map(np.asarray, values))))

    def failed(operands: Any, values: Any) -> Any:
        is_well = jnp.all(jnp.asarray(holds(*operands)))
        jax.lax.cond(is_well, lambda *_: None, lambda *values: jax.debug.callback(note, *values), *values)
        return ~is_well

    found = node(failed, f"{name}/failed", {"operands": [argument(item) for item in operands], "values": list(shown)})
    made.append(Check(found, name))
    return made[0]


def Assert(condition: Any, data: Any, summarize: Any = None, name: Any = None) -> Any:
    """Returns an operation that fails the run if the condition does not hold.

    References:
        `tf.Assert`. A failed run changes no variable, whether or not its update depends on the check.
    """
    return _asserted(lambda holds: holds, (condition,), data, summarize, name or "Assert")


def _asserted(holds: Callable[..., Any], operands: Any, data: Any, summarize: Any, name: str) -> Any:
    fixed, values = _apart(data)
    few = _SHOWN if summarize is None else summarize

    def describe(*found: Any) -> str:
        return f"assertion failed: {' '.join(_joined(fixed, found, lambda value: _few(value, few)))}"

    return _check(holds, operands, name, values, describe)


def check_numerics(tensor: Any, message: str, name: Any = None) -> Any:
    """Returns the tensor; a run raises `InvalidArgumentError` if it is not finite.

    References:
        `tf.check_numerics`. A `NanTensorHook` costs less.
    """
    tensor = convert_to_tensor(tensor)

    def describe(value: Any) -> str:
        found = [what for what, has in (("Inf", np.isinf(value).any()), ("NaN", np.isnan(value).any())) if has]
        return f"{message} : Tensor had {' and '.join(found)} values"

    with name_scope(name, "CheckNumerics"):
        check = _check(lambda x: jnp.isfinite(x), (tensor,), "check", [tensor], describe)
        with control_dependencies([check]):
            return node(lambda x: x, "checked", {"x": tensor})


def verify_tensor_all_finite(
    t: Any = None, msg: str | None = None, name: Any = None, x: Any = None, message: Any = None
) -> Any:
    """`tf.verify_tensor_all_finite`: see `check_numerics`."""
    return check_numerics(t if x is None else x, (msg if message is None else message) or "", name)


def add_check_numerics_ops() -> Operation:
    """`tf.add_check_numerics_ops`: an operation that checks all floating point numbers of the default graph."""
    made = []
    for operation in get_default_graph().get_operations():
        dtype = operation.output.dtype if isinstance(operation, Function) else None
        if dtype is not None and dtype.is_floating:
            made.append(check_numerics(operation.output, operation.output.name))
    return group(*made, name="group_deps")


# Strings are compared on the host.
_OF_TEXT = {"assert_equal": math.equal, "assert_none_equal": math.not_equal}


def _compared(called: str, sign: str, holds: Callable[..., Any]) -> Any:
    def check(x: Any, y: Any, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None) -> Any:
        if data is None:
            data = [f"Condition x {sign} y did not hold element-wise:", *_named("x", x), *_named("y", y)]
            data = data if message is None else [message, *data]
        if called in _OF_TEXT and any(
            host_strings.is_text(item) or host_strings.is_plain_text(item) for item in (x, y)
        ):
            return _asserted(lambda same: same, (_OF_TEXT[called](x, y),), data, summarize, name or called)
        return _asserted(holds, (x, y), data, summarize, name or called)

    check.__name__, check.__doc__ = called, f"`tf.{called}`."
    return check


def _signed(called: str, sign: str, holds: Callable[..., Any]) -> Any:
    def check(x: Any, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None) -> Any:
        if data is None:
            data = [f"Condition x {sign} 0 did not hold element-wise:", *_named("x", x)]
            data = data if message is None else [message, *data]
        return _asserted(holds, (x,), data, summarize, name or called)

    check.__name__, check.__doc__ = called, f"`tf.{called}`."
    return check


def _named(what: str, value: Any) -> list[Any]:
    return [f"{what} ({value.name}) = " if isinstance(value, Tensor) else f"{what} = ", value]


def _ranked(called: str, fits: Callable[[int, int], bool], wanted: str) -> Any:
    def check(x: Any, rank: int, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None) -> Any:
        tensor = convert_to_tensor(x)
        ndims = tensor.get_shape().ndims
        if ndims is not None and not fits(ndims, rank):
            start = f"{message}.  " if message else ""
            raise ValueError(
                f"{start}Tensor {tensor.name} must have {wanted} {rank}.  Received rank {ndims}, shape {tensor.shape}"
            )
        if ndims is not None:
            return no_op(name or called)
        data = [f"{tensor.name} must have {wanted} {rank}."] if data is None else data
        return _asserted(lambda x: fits(jnp.ndim(x), rank), (tensor,), data, summarize, name or called)

    check.__name__, check.__doc__ = called, f"`tf.{called}`: checks when the graph is built, if the rank is known."
    return check


def assert_type(tensor: Any, tf_type: Any, message: Any = None, name: Any = None) -> Any:
    """`tf.assert_type`: checks when the graph is built."""
    tensor, wanted = convert_to_tensor(tensor), as_dtype(tf_type)
    if tensor.dtype != wanted:
        start = f"{message}  " if message else ""
        raise TypeError(f"{start}{tensor.name} must be of type {wanted!r}, got {tensor.dtype!r}.")
    return no_op(name or "assert_type")


assert_equal = _compared("assert_equal", "==", jnp.equal)
assert_greater = _compared("assert_greater", ">", jnp.greater)
assert_greater_equal = _compared("assert_greater_equal", ">=", jnp.greater_equal)
assert_less = _compared("assert_less", "<", jnp.less)
assert_less_equal = _compared("assert_less_equal", "<=", jnp.less_equal)
assert_negative = _signed("assert_negative", "<", lambda x: x < 0)
assert_non_negative = _signed("assert_non_negative", ">=", lambda x: x >= 0)
assert_none_equal = _compared("assert_none_equal", "!=", jnp.not_equal)
assert_positive = _signed("assert_positive", ">", lambda x: x > 0)
assert_rank = _ranked("assert_rank", lambda found, rank: found == rank, "rank")
assert_rank_at_least = _ranked("assert_rank_at_least", lambda found, rank: found >= rank, "rank at least")

__all__ = [
    "Assert",
    "Print",
    "add_check_numerics_ops",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_less",
    "assert_less_equal",
    "assert_negative",
    "assert_non_negative",
    "assert_none_equal",
    "assert_positive",
    "assert_rank",
    "assert_rank_at_least",
    "assert_type",
    "check_numerics",
    "verify_tensor_all_finite",
]
