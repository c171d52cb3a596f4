"""Views: names of parts of a value, and access to them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import jax

from hookline.graph import spec as specs

Step = tuple[str, Any]
"""One step of a view's path: `("item", index)` or `("attr", name)`; hashable."""

Path = tuple[Step, ...]


class NotHashable(Exception):
    """An index that cannot be part of a view's path."""


def freeze(item: Any) -> Any:
    """Makes an index hashable: a slice is kept as a tuple, which `take` undoes.

    Raises:
        NotHashable: It holds a list or an array.
    """
    if isinstance(item, tuple):
        return ("#tuple", *(freeze(part) for part in item))
    if isinstance(item, slice):
        return ("#slice", item.start, item.stop, item.step)
    try:
        hash(item)
    except TypeError as error:
        raise NotHashable from error
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
        except ValueError:
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
