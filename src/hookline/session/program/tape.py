"""The tape: the record of a trace's computations, over which gradients run backward.

Each operation on the path of a gradient is computed once, at its own position, and its pullback is kept. The gradient
then runs backward from `ys` over the kept pullbacks, and computes nothing else. Its own computations are recorded on
the tape, too, if another gradient (a second derivative) will run backward through them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad

from hookline.graph.gradient import Gradient
from hookline.graph.graph import Operation


class Cell:
    """One array of a trace, distinguished by identity: the same array may be the value of several operations."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def is_differentiable(self) -> bool:
        """Whether it has a derivative, that is, is floating point."""
        return _is_differentiable(self.value)


class Cells(NamedTuple):
    """A value, with a cell for each array in it. Containers never hold cells: their classes may accept arrays only."""

    leaves: Sequence[Cell]
    treedef: Any

    @classmethod
    def of(cls, value: Any) -> Cells:
        """Wraps a value in new cells."""
        leaves, treedef = jax.tree.flatten(value)
        return cls([Cell(leaf) for leaf in leaves], treedef)

    def value(self, instead: Mapping[Cell, Any] | None = None) -> Any:
        """Returns the value, with replacements for the arrays of some cells."""
        instead = instead or {}
        return jax.tree.unflatten(self.treedef, [instead.get(cell, cell.value) for cell in self.leaves])


class _Entry(NamedTuple):
    owner: Operation | None
    level: int
    inputs: Sequence[Cell]
    outputs: Sequence[Cell]
    pullback: Cells  # a function from cotangents of the outputs to those of the inputs


class Tape:
    """The entries of one trace, in the order of the computation.

    Args:
        gradients: The gradients of the run.
        caller_operations: The operations that are computed for the caller, and not only because a hook fetches them.
    """

    def __init__(self, gradients: Iterable[Gradient], caller_operations: frozenset[Operation]) -> None:
        self._gradients = list(gradients)
        self._caller_operations = caller_operations
        self._entries: list[_Entry] = []
        self._orders: dict[Operation | None, list[int]] = {}

    def fork(self) -> Tape:
        """Returns a tape that continues this one, which stays unchanged."""
        other = Tape(self._gradients, self._caller_operations)
        other._entries, other._orders = self._entries.copy(), self._orders
        return other

    def gradients_through(self, owner: Operation | None) -> list[Gradient]:
        """Returns the gradients that run backward through the work of `owner`; all of them for `None`."""
        return [g for g in self._gradients if owner is None or g.is_on_path(owner)]

    def _orders_of(self, owner: Operation | None) -> list[int]:
        if owner not in self._orders:
            self._orders[owner] = sorted({gradient.order for gradient in self.gradients_through(owner)})
        return self._orders[owner]

    def record(self, owner: Operation | None, fn: Callable[..., Any], inputs: Sequence[Cell]) -> Cells:
        """Computes `fn` on the values of cells, for all gradients that will run backward through it.

        Args:
            owner: The operation that computes it; `None` for work of no operation, such as indexing.
            fn: A function of one floating point array for each cell, which returns a pytree.
            inputs: The cells.

        Returns:
            The result, with a new cell for each array.
        """
        return self._record(owner, fn, inputs, 1, len(self._orders_of(owner)))

    def _record(self, owner: Any, fn: Callable[..., Any], inputs: Sequence[Cell], level: int, levels: int) -> Cells:
        """Computes `fn`, differentiable by the gradients from `level` on; level 1 has the lowest order.

        A gradient of a higher order runs backward through the work of lower orders: for it, the pullback of the level
        before is one more result of the computation.
        """
        if level > levels:
            return Cells.of(fn(*[cell.value for cell in inputs]))
        split = _Split()

        def with_pullback(*values: Any) -> Any:
            floating, pullback, others = jax.vjp(lambda *values: split(fn(*values)), *values, has_aux=True)
            return floating, others, pullback

        leaves, treedef = self._record(owner, with_pullback, inputs, level + 1, levels)
        n_results = len(split.is_floating)
        floating, others = leaves[: sum(split.is_floating)], leaves[sum(split.is_floating) : n_results]
        pullback = Cells(leaves[n_results:], treedef.children()[2])
        self._entries.append(_Entry(owner, level, inputs, floating, pullback))
        return split.join(floating, others)

    def backward(self, gradient: Gradient, ys: Iterable[Cell]) -> Mapping[Cell, Cell]:
        """Returns the derivative of the sum of `ys` with respect to each cell on the gradient's path."""
        times = Counter(ys)
        cotangents = {y: Cell(jnp.full_like(y.value, count)) for y, count in times.items()}
        for entry in reversed(self._entries.copy()):
            given = [cotangents.get(cell) for cell in entry.outputs]
            if not any(given) or not self._goes_through(gradient, entry):
                continue
            for cell, pulled in zip(entry.inputs, self._apply_pullback(gradient, entry, given), strict=True):
                earlier = cotangents.get(cell)
                both = pulled if earlier is None else self.record(gradient, jnp.add, [earlier, pulled]).leaves[0]
                cotangents[cell] = both
        return cotangents

    def _goes_through(self, gradient: Gradient, entry: _Entry) -> bool:
        if entry.owner is not None and not gradient.is_on_path(entry.owner):
            return False
        return entry.level == 1 + self._orders_of(entry.owner).index(gradient.order)

    def _apply_pullback(self, gradient: Gradient, entry: _Entry, given: Sequence[Cell | None]) -> Sequence[Cell]:
        """Returns the cotangents of an entry's inputs for those of its outputs; `None` is zero."""
        cells = entry.pullback.leaves
        floating = [cell for cell in cells if cell.is_differentiable]
        is_for_hook = gradient not in self._caller_operations and entry.owner in self._caller_operations

        def pull_back(*values: Any) -> Any:
            remaining = iter(values)
            kept = [next(remaining) if cell.is_differentiable else cell.value for cell in cells]
            # A hook's gradient must not change how the rest is compiled.
            pullback = jax.tree.unflatten(entry.pullback.treedef, barrier(kept) if is_for_hook else kept)
            cotangents = [None if ct is None else next(remaining) for ct in given]

            def filled(zero: Callable[[Any], Any]) -> list[Any]:
                pairs = zip(cotangents, entry.outputs, strict=True)
                return [zero(cell.value) if ct is None else ct for ct, cell in pairs]

            try:
                # Nothing is computed for a symbolic zero.
                return pullback(filled(lambda value: ad.Zero(jax.typeof(value).to_ct_aval())))
            except ValueError:
                # The transpose of a scan takes no symbolic zeros for its stacked outputs.
                return pullback(filled(jnp.zeros_like))

        return self.record(gradient, pull_back, [*floating, *(ct for ct in given if ct is not None)]).leaves


class _Split:
    """Separates the floating point leaves of a function's result from the others, and keeps their positions.

    Attributes:
        is_floating: For each leaf, whether it is floating point.
    """

    is_floating: Sequence[bool]

    def __call__(self, result: Any) -> tuple[list[Any], list[Any]]:
        leaves, self._treedef = jax.tree.flatten(result)
        self.is_floating = [_is_differentiable(leaf) for leaf in leaves]
        floating = [leaf for leaf, is_floating in zip(leaves, self.is_floating, strict=True) if is_floating]
        return floating, [leaf for leaf, is_floating in zip(leaves, self.is_floating, strict=True) if not is_floating]

    def join(self, moving: Sequence[Cell], other: Sequence[Cell]) -> Cells:
        """Returns the result with these leaves in place of its own."""
        sources = (iter(other), iter(moving))
        return Cells([next(sources[moves]) for moves in self.is_floating], self._treedef)


def _is_differentiable(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return jnp.issubdtype(jnp.result_type(leaf) if dtype is None else dtype, jnp.inexact)


def barrier(value: Any) -> Any:
    """Returns the value behind an optimization barrier, which XLA does not compile across."""
    # Leaf by leaf: a single barrier around all would keep all of them alive until the last is ready.
    return jax.tree.map(lambda leaf: jax.lax.optimization_barrier(leaf) if isinstance(leaf, Tracer) else leaf, value)
