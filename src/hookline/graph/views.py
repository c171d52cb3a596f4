"""Views: names of parts of a value, access to them, and the indexing of tensors that makes them."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax

from hookline.graph import spec as specs
from hookline.graph.operators import NoValue, Operators

T = TypeVar("T")

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


class Views(Operators[T], NoValue):
    """A value that is not known yet, whose parts are views of type `T`.

    Indexing with plain values, attributes and unpacking make views. Indexing with such values makes an operation.

    Attributes:
        spec: As in `Tensor`.
    """

    spec: Any

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
                return self._view(("item", freeze(item)))
            except NotHashable:
                pass  # a list or an array of indices cannot name a view
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


def _is_computed(index: Any) -> bool:
    """Returns whether an index contains a value that is not known yet."""
    return any(isinstance(leaf, Views) for leaf in jax.tree.leaves(index))


def _getitem(value: Any, index: Any) -> Any:
    return value[index]
