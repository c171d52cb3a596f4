"""The names of the variables that a function returns, and metrics by these names."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

Labels = str | tuple[Any, ...] | None
"""The name of a returned variable, a tuple of labels for a tuple, or None for anything else."""

# loss, d_loss, loss_gen, losses
_LOSS = re.compile(r"(.+_)?loss(es)?(_.+)?")
# grads, g_grads, gradients
_GRADIENTS = re.compile(r"(.+_)?grad(ient)?s?(_.+)?")


def is_loss(name: str) -> bool:
    """Returns whether a metric is called a loss.

    Example:
        >>> is_loss("loss"), is_loss("d_loss"), is_loss("loss/gen"), is_loss("accuracy")
        (True, True, True, False)
    """
    return any(_LOSS.fullmatch(part) for part in name.split("/"))


def are_gradients(name: str) -> bool:
    """Returns whether a value is called gradients."""
    return _GRADIENTS.fullmatch(name) is not None


def returned_names(function: Any) -> Labels:
    """Returns the names of the variables that a function returns; None without its source, or if its returns differ."""
    while not inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return None
        function = inner
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):  # It has none, or is a lambda inside of an expression.
        return None
    if not isinstance(made, ast.FunctionDef):
        return None
    found = {_label(statement.value) for each in made.body for statement in _returns(each)}
    return found.pop() if len(found) == 1 else None


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    if isinstance(node, ast.Return):
        yield node
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
        for inside in ast.iter_child_nodes(node):
            yield from _returns(inside)


def _label(value: ast.expr | None) -> Labels:
    if isinstance(value, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in value.elts):
        return tuple(map(_label, value.elts))
    return value.id if isinstance(value, ast.Name) else None


def named_losses(values: Sequence[Any], labels: Sequence[Labels]) -> Any:
    """Returns metrics, of which several losses have the names of the variables that were returned.

    Example:
        >>> named_losses([0.5, 0.25, 3.0], ["d_loss", "g_loss", "logits"])
        ({'d_loss': 0.5, 'g_loss': 0.25}, 3.0)
        >>> named_losses([(0.5, 0.25)], [("d_loss", "g_loss")]), named_losses([0.5, 0.25], ["loss", "aux"])
        ({'d_loss': 0.5, 'g_loss': 0.25}, (0.5, 0.25))
    """
    if not values:
        return {}
    if len(values) == 1:
        (value,), (label,) = values, labels
        is_spread = type(value) is tuple and value and isinstance(label, tuple) and len(label) == len(value)
        return named_losses(value, label) if is_spread else value  # pyright: ignore[reportArgumentType]
    pairs = list(zip(labels, values, strict=True))
    losses = {label: value for label, value in pairs if isinstance(label, str) and is_loss(label)}
    if len(losses) < 2:
        return tuple(values)
    rest = [value for label, value in pairs if not (isinstance(label, str) and label in losses)]
    return (losses, *rest) if rest else losses
