"""Folds integer constants while the graph is built; an open dimension is a symbol that computes like a number."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from hookline import Operation, Tensor
from hookline.extend import Constant, Function, get_at_path, specs
from hookline_tf1._rules import inference_by_example

# Inside `own_symbols`: the names of symbols by tensor; and whether numbers that only a run computes get symbols, too.
_APART: ContextVar[dict[Any, str] | None] = ContextVar("symbols of tensors", default=None)
_OF_RUNS: ContextVar[bool] = ContextVar("numbers of runs are symbols", default=False)

_PACKS = ("stack", "packed")

WITH_DEFAULT = "PlaceholderWithDefault"
"""The kind of operations whose value is known unless they are fed."""


class Unknown(Exception):
    """A value that is not known while the graph is built."""


class Sizes(Function):
    """An operation that computes from the shape of its input, which is known when a program is traced."""

    def of(self, dims: np.ndarray) -> np.ndarray:
        """Returns the value for the dimensions of the input."""
        return dims


def symbolic(tensor: Tensor) -> Any:
    """Returns the integers of a tensor as a NumPy array, with symbols for open dimensions.

    Raises:
        Unknown: They are not known while the graph is built.
    """
    try:
        return _evaluated(tensor)
    except Unknown:
        if not _OF_RUNS.get():
            raise
        return _of_run(tensor)


def _evaluated(tensor: Tensor) -> Any:
    op = tensor.op
    if isinstance(op, Constant):
        return get_at_path(op.value, tensor.path)
    if getattr(op, "kind", "") == WITH_DEFAULT:
        raise Unknown
    if isinstance(op, Sizes):
        return get_at_path(op.of(of_dims(op.inputs[0])), tensor.path)
    if not isinstance(op, Function) or getattr(op, "twin", op) is None:
        raise Unknown
    value_of = _number if getattr(op, "kind", "") in _PACKS else symbolic
    values = {source.key: value_of(source) for source in op.inputs}
    try:
        return get_at_path(op.call(lambda source: values[source.key]), tensor.path)
    except Exception:
        raise Unknown from None


def _number(tensor: Tensor) -> Any:
    """Folds a tensor like `symbolic`, but takes a tensor of unknown shape for a scalar."""
    try:
        return symbolic(tensor)
    except Unknown:
        if not _OF_RUNS.get() or tensor.spec is not specs.UNKNOWN:
            raise
        return _symbols(tensor, ())


def _of_run(tensor: Tensor) -> np.ndarray:
    """Returns a symbol for each number of a tensor."""
    shape = getattr(tensor.spec, "shape", None)
    if shape is None or not all(isinstance(dim, int) for dim in shape) or tensor.spec.dtype.kind not in "iu":
        raise Unknown
    return _symbols(tensor, shape)


def _symbols(tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Returns symbols for the numbers of a tensor, of either sign."""
    names = _APART.get()
    assert names is not None, "inside own_symbols"
    name = names.setdefault(tensor.key, f"of{len(names)}")
    found = np.empty(math.prod(shape), object)
    found[:] = [specs.symbol(f"{name}_{i}") - specs.symbol(f"{name}_{i}_less") for i in range(found.size)]
    return found.reshape(shape)


def partly(value: Any) -> Any:
    """Returns the integers of an argument, nested as given, with `None` for numbers that only a run computes.

    Raises:
        Unknown: Not even the count of the numbers is known.
    """
    token = _OF_RUNS.set(True)
    try:
        with own_symbols():
            found = _nested(value)
    finally:
        _OF_RUNS.reset(token)
    numbers = [int(item) if isinstance(item, int | np.integer) else None for item in found.ravel().tolist()]
    return np.array(numbers, object).reshape(found.shape).tolist()


def _nested(value: Any) -> np.ndarray:
    if isinstance(value, list | tuple):
        items = [_number(item) if isinstance(item, Tensor) else item for item in value]
        return np.stack([_nested(item) for item in items]) if items else np.zeros(0, object)
    return elements(symbolic(value) if isinstance(value, Tensor) else value).astype(object)


def mark_static(tensor: Tensor, reader: Operation) -> None:
    """Marks a tensor whose value XLA has to know, and its inputs, so that feeds of them are static values.

    Args:
        tensor: As above.
        reader: The operation that is compiled with the value.
    """
    left = [tensor]
    while left:
        op = left.pop().op
        vars(op).setdefault("static_for", set()).add(reader)
        if isinstance(op, Function) and not isinstance(op, Sizes) and getattr(op, "twin", None) is not None:
            left += op.inputs


def is_static(op: Operation, computed: Collection[Operation]) -> bool:
    """Whether another operation in the program is compiled with the operation's value; see `mark_static`."""
    return not vars(op).get("static_for", set()).isdisjoint(computed)


def build_in(tensor: Tensor) -> None:
    """Marks a tensor with whose value the graph was built, and its inputs, as not feedable.

    The shape of a tensor with open dimensions stays feedable: only its known dimensions were used.
    """
    left = [tensor]
    while left:
        tensor = left.pop()
        op: Any = tensor.op
        if not isinstance(tensor.op, Sizes):
            left += op.inputs
        found = {part.path for part in (tensor, op.output) if is_settled(part)}
        op.built_in = found | getattr(op, "built_in", set())


def check_feed(tensor: Tensor) -> None:
    """Refuses a feed that could have no effect.

    Raises:
        ValueError: The graph was built with the tensor's value.
    """
    if tensor.path in getattr(tensor.op, "built_in", ()):
        raise ValueError(
            f"feed_dict: {tensor.name!r} (made at {tensor.op.location}) cannot be fed: a size or an axis was built of "
            f"its number, which is part of the graph already. Make it with tf.placeholder_with_default, whose number "
            f"each run may give."
        )


def of_dims(tensor: Tensor) -> np.ndarray:
    """Returns the shape of a tensor as an array, with symbols for open dimensions.

    Raises:
        Unknown: Not even its rank is known.
    """
    spec, names = tensor.spec, _APART.get()
    if names is not None and specs.is_array(spec):
        name = names.setdefault(tensor.key, f"of{len(names)}")
        dims = enumerate(spec.shape)
        return dims_array([dim if isinstance(dim, int) else specs.symbol(f"{name}_{axis}") - 1 for axis, dim in dims])
    shape = getattr(inference_by_example.sized(spec), "shape", None)
    if shape is None:
        raise Unknown
    return dims_array(shape)


def dims_array(shape: Any) -> np.ndarray:
    """Returns the dimensions as an array: of int32, or of objects if some are symbols."""
    known = all(isinstance(dim, int) for dim in shape)
    made = np.empty(len(shape), np.int32 if known else object)
    made[:] = list(shape)
    return made


@contextlib.contextmanager
def own_symbols() -> Iterator[None]:
    """Gives each open dimension of each tensor its own symbol, for sizes from 0 on."""
    token = _APART.set({})
    try:
        yield
    finally:
        _APART.reset(token)


def apart(tensor: Tensor) -> Any:
    """Folds a tensor like `symbolic`, with a separate symbol for each open dimension of each tensor.

    Raises:
        Unknown: See `symbolic`.
    """
    with own_symbols():
        return symbolic(tensor)


def is_rest(dim: Any) -> bool:
    """Whether a requested dimension is -1: the remaining one."""
    return isinstance(dim, int) and dim < 0


def remaining(shape: list[Any], dims: list[Any]) -> int | None:
    """Returns the size of a -1 among dimensions, if it does not depend on the open dimensions of the shape."""
    others = math.prod(dim for dim in dims if not is_rest(dim))
    try:
        left = math.prod(shape) // others
    except Exception:  # Symbols are not divisible by it.
        return None
    return left if isinstance(left, int) and left * others == math.prod(shape) else None


def elements(value: Any) -> np.ndarray:
    """Returns numbers and symbols as an array; `np.asarray` would require the value of a single symbol."""
    if hasattr(value, "scope"):
        return dims_array([value]).reshape(())
    return np.asarray(value)


def parts(shape: Any) -> list[Any]:
    """Returns the parts of a shape as a list: its dimensions, or one tensor with all of them."""
    return list(shape) if isinstance(shape, list | tuple) else [shape]


def _settled(tensor: Tensor) -> Any:
    """Returns a mask, or one boolean, of the elements that do not depend on open dimensions."""
    try:
        found = elements(apart(tensor))
    except Unknown:
        return np.False_
    if found.dtype.kind != "O":
        return np.ones(found.shape, bool)
    flat = [not hasattr(element, "scope") for element in found.ravel().tolist()]
    return np.asarray(flat, bool).reshape(found.shape)


def is_settled(tensor: Tensor) -> bool:
    """Whether all elements are known while the graph is built, independent of open dimensions."""
    return bool(np.all(_settled(tensor)))


def constant_value(tensor: Tensor, partial: bool = False) -> np.ndarray | None:
    """Folds a tensor to its constant value; None if it has none: `tf.contrib.util.constant_value`."""
    if partial:
        raise NotImplementedError("constant_value(partial=True) is not available: take the dimensions one by one.")
    try:
        found = elements(apart(tensor))
    except Unknown:
        return None
    return None if found.dtype.kind == "O" else found


def is_cancelled(tensor: Tensor) -> bool:
    """Whether an element is a number only because open dimensions of several tensors share one symbol."""
    found = elements(symbolic(tensor))
    flat = [not hasattr(element, "scope") for element in found.ravel().tolist()]
    return bool(np.any(np.asarray(flat, bool).reshape(found.shape) & ~_settled(tensor)))


def open_specs(tensors: dict[Any, Tensor]) -> list[Any]:
    """Returns the specs with open dimensions that tensors depend on."""
    found: list[Any] = []
    left = list(tensors.values())
    while left:
        op = left.pop().op
        if isinstance(op, Sizes):
            found.append(op.inputs[0].spec)
        else:
            left += op.inputs
    return found


def example(tensor: Tensor, less: int) -> Any:
    """Returns the integers of a tensor in an example; integers that may vary differ in the next example."""
    value = symbolic(tensor)
    names = sorted(inference_by_example.symbols(open_specs({tensor.key: tensor})))
    one, other = (elements(value_) for value_ in inference_by_example.in_examples(names, lambda: symbolic(tensor)))
    settled = _settled(tensor)
    found = np.where(
        settled, value, np.where(one == other, int(inference_by_example.is_first()), np.asarray(value) - less)
    )
    return found.astype(np.asarray(value).dtype)
