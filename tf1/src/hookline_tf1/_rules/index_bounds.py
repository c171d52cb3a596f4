"""Checks of index bounds, because a compiled program accepts an index out of range.

On a CPU, TensorFlow raises an error if `tf.gather`, `tf.scatter_add`, a sparse cross entropy and the like get an index
out of range. Here each such operation has a `Check` in the run. Constant indices are refused when the graph is built,
and functions on the host check theirs when they are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import Operation, Tensor
from hookline.errors import InvalidArgumentError
from hookline.extend import Check, Constant, specs


class Within(NamedTuple):
    """An argument that holds indices, and their bound.

    Args:
        name: The name of the argument.
        size: Returns, for the arguments by name, the exclusive bound: one number, or one for each index.
        drops_negative: Whether negative indices are allowed; the operation ignores them.
        picked: Reads the argument, where the operation has it under another name.
    """

    name: str
    size: Callable[..., Any]
    drops_negative: bool = False
    picked: Callable[[dict[str, Any]], Any] | None = None

    def of(self, args: dict[str, Any]) -> Any:
        """Returns the argument."""
        return args[self.name] if self.picked is None else self.picked(args)

    def outside(self, args: dict[str, Any], xp: Any) -> tuple[Any, Any, Any]:
        """Returns indices and bounds as flat arrays, and a mask of the indices out of range.

        Args:
            args: The arguments by name.
            xp: `numpy` or `jax.numpy`.
        """
        indices = xp.asarray(self.of(args))
        sizes = xp.broadcast_to(xp.asarray(self.size(**args)), indices.shape)
        are_out = indices >= sizes
        return indices.ravel(), sizes.ravel(), (are_out if self.drops_negative else are_out | (indices < 0)).ravel()

    def is_settled(self, args: dict[str, Any]) -> bool:
        """Whether constants rule out an index out of range, so no run has to check."""
        return False

    def describe(self, shape: Any, at: int, index: int, size: int) -> str:
        """Describes the error of an index, with its position.

        Args:
            shape: The shape of the indices; the first dimension may be open. None if it is unknown.
            at: The position among the flattened indices.
            index: The index.
            size: The exclusive bound.
        """
        if shape is None or None in shape[1:]:
            return f"{self.name} hold {index}, which {self.wrong(index, size)}"
        # The size of the first dimension does not matter, so it may be open.
        found = np.unravel_index(at, (at + 1, *shape[1:]) if shape else ())
        where = f"[{','.join(map(str, found))}]" if shape else ""
        return f"{self.name}{where} = {index} {self.wrong(index, size)}"

    def wrong(self, index: int, size: int) -> str:
        """Describes the error of an index, beginning with a verb."""
        return f"is not in [0, {size})"


class Indexes(Within):
    """An index in brackets, which may be negative to count from the end.

    Args:
        name: The indexed dimension, for the error.
        size: See `Within`, as for the arguments after it.
        drops_negative: As above.
        picked: As above.
    """

    def outside(self, args: dict[str, Any], xp: Any) -> tuple[Any, Any, Any]:
        """See `Within`."""
        indices, sizes, _ = super().outside(args, xp)
        return indices, sizes, (indices >= sizes) | (indices < -sizes)

    def describe(self, shape: Any, at: int, index: int, size: int) -> str:
        """See `Within`."""
        return f"slice index {index} of {self.name} out of bounds: that has {size}"


class Divides(Within):
    """A divisor of integers, which must not be 0.

    Args:
        name: The name of the argument.
        size: Returns the dividend; floats may be divided by 0.
    """

    def outside(self, args: dict[str, Any], xp: Any) -> tuple[Any, Any, Any]:
        """See `Within`."""
        divisor = xp.asarray(self.of(args))
        flat = xp.where(divisor == 0, 0, 1).astype(np.int32).ravel()
        return flat, flat, (flat == 0) & self._is_whole(args)

    def is_settled(self, args: dict[str, Any]) -> bool:
        """See `Within`."""
        divisor = _known(self.of(args))
        is_constant = isinstance(divisor, int | np.ndarray | np.generic)
        return not self._is_whole(args) or (is_constant and bool(np.all(divisor != 0)))

    def _is_whole(self, args: dict[str, Any]) -> bool:
        """Whether integers are divided by integers, as far as their dtypes are known."""
        return all(_kind(item) in "iu" for item in (self.size(**args), self.of(args)))

    def describe(self, shape: Any, at: int, index: int, size: int) -> str:
        """See `Within`."""
        return "integer division by zero"


def _kind(value: Any) -> str:
    dtype = getattr(value.spec if isinstance(value, Tensor) else value, "dtype", None)
    if dtype is None and isinstance(value, Tensor):
        return "i"  # The dtype is unknown: it may be an integer.
    return np.asarray(value).dtype.kind if dtype is None else np.dtype(dtype).kind


def indexes(parts: tuple[Any, ...]) -> tuple[Within, ...]:
    """Finds the tensors that are indices in `x[parts]`, where `operand_0` is `x` and `operand_1` is `parts`."""
    if any(_kind(part) == "b" for part in parts if isinstance(part, Tensor) or hasattr(part, "dtype")):
        return ()  # A mask indexes as many dimensions as it has.
    found, axis = [], 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            axis = -sum(rest is not None for rest in parts[i + 1 :])
            continue
        if isinstance(part, Tensor) and _kind(part) in "iu":
            of_axis = f"dimension {axis}"
            found.append(Indexes(of_axis, _length_of(axis), picked=_part_at(i)))
        axis += part is not None
    return tuple(found)


def _length_of(axis: int) -> Callable[..., Any]:
    return lambda operand_0, operand_1: shape(operand_0)[axis]


def _part_at(i: int) -> Callable[[dict[str, Any]], Any]:
    return lambda args: args["operand_1"][i] if isinstance(args["operand_1"], tuple) else args["operand_1"]


def shape(value: Any) -> Any:
    """Returns the shape of an array, or the known shape of a tensor."""
    return value.shape if hasattr(value, "shape") else np.shape(value)


def check(withins: Sequence[Within], args: dict[str, Any], given: Callable[[Any], tuple[dict[str, Any], Any]]) -> Check:
    """Makes the check of an operation for indices out of range.

    Args:
        withins: The arguments that are indices.
        args: The arguments by name; some are tensors.
        given: Returns, for the result of `Operation.bind`, the arguments by name, and whether the operation is active:
            None, or a bool that is false in a branch of a `tf.cond` that is not taken.
    """
    shapes = [_shape_of(within.of(args)) for within in withins]

    def failed(bound: Any) -> Any:
        now, taken = given(bound)
        findings = [_find_first(within, now, taken) for within in withins]
        which = jnp.argmax(jnp.stack([finding[0] for finding in findings]))
        is_out, *details = jnp.stack(findings)[which]
        return (is_out, which, *details)

    def message(which: int, at: int, index: int, size: int) -> str:
        return withins[which].describe(shapes[which], at, index, size)

    return Check(failed, message)


def _find_first(within: Within, args: dict[str, Any], taken: Any) -> Any:
    """Finds the first index out of range: returns whether one exists, its position, the index, and the bound."""
    indices, sizes, are_out = within.outside(args, jnp)
    count = indices.size
    if not count:
        return jnp.zeros(4, jnp.int32)
    # One pass over integers.
    at = jnp.min(jnp.where(are_out, jnp.arange(count, dtype=jnp.int32), count))
    is_out = at < count if taken is None else (at < count) & taken
    return jnp.stack([jnp.asarray(item).astype(jnp.int32) for item in (is_out, at, indices[at], sizes[at])])


def _shape_of(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        return (len(value),)  # A list of scalars, some of them tensors.
    return specs.open_shape(value.spec) if isinstance(value, Tensor) else np.shape(value)


def watch(operation: Operation, withins: Sequence[Within], args: dict[str, Any]) -> None:
    """Adds a check to an update, and refuses constant indices that are out of range.

    Args:
        operation: The update.
        withins: The arguments that are indices.
        args: Its arguments by name, in order; an update in a branch takes first whether the branch is taken.

    Raises:
        InvalidArgumentError: See `refuse_constants`.
    """

    def given(bound: Any) -> tuple[dict[str, Any], Any]:
        values = list(bound)
        taken = values.pop(0) if len(values) > len(args) else None
        return dict(zip(args, values, strict=True)), taken

    operation.check = check(withins, args, given)
    _, taken = given(operation.bind(lambda tensor: tensor))
    if taken is None:
        refuse_constants(operation, withins, args)


def refuse_constants(operation: Operation, withins: Sequence[Within], args: dict[str, Any]) -> None:
    """Refuses constant indices that are out of range.

    Raises:
        InvalidArgumentError: A constant index is out of range. The error names the operation.
    """
    known = jax.tree.map(_known, args)
    for within in withins:
        if isinstance(within.of(known), int | np.ndarray | np.generic):
            what = None
            # Bounds that depend on open dimensions are checked in the run.
            with contextlib.suppress(TypeError, IndexError, jax.errors.InconclusiveDimensionOperation):
                what = _refused(within, known)
            if what is not None:
                raise InvalidArgumentError(operation.node_def, operation, f"{operation.node_def}: {what}.")


def _known(value: Any) -> Any:
    """Returns the value of a constant, or the spec of another tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.op.value if isinstance(value.op, Constant) and not value.path else value.spec


def _refused(within: Within, args: dict[str, Any]) -> str | None:
    indices, sizes, are_out = within.outside(args, np)
    if not are_out.any():
        return None
    at = int(np.argmax(are_out))
    return within.describe(np.shape(within.of(args)), at, int(indices[at]), int(sizes[at]))


def on_host(fn: Callable[..., Any], name: str, withins: Sequence[Within]) -> Callable[..., Any]:
    """Wraps a function of NumPy arrays to refuse indices out of range."""

    def called(**args: Any) -> Any:
        for within in withins:
            what = _refused(within, args)
            if what is not None:
                raise InvalidArgumentError.from_message(f"{name!r}: {what}.")
        return fn(**args)

    return called
