"""Arrays in memory as a source of batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hookline import arguments
from hookline.data.batches import crc32c
from hookline.data.gathered import Gathered
from hookline.data.memory import room


def arrays(tree: Any, batch_size: int, shuffle_seed: int | None = None, epochs: int | None = 1) -> Arrays:
    """Makes batches of the examples in arrays, as a source for `iterator`.

    Each epoch has every example once. If their number is not a multiple of `batch_size`, the last batch is smaller. The
    order of an epoch depends only on the seed and the epoch's number, so an iterator can continue in the middle of an
    epoch at no cost.

    Processes that run in step are given the same arrays and the batch size of all of them together, as in a script for
    one process. Each gathers its own rows of every batch.

    Args:
        tree: An array, or a pytree of arrays with a common first dimension, which counts the examples.
        batch_size: The number of examples in a batch.
        shuffle_seed: Shuffles each epoch in its own order; `None` keeps the order.
        epochs: The number of passes over the examples; `None` for no end.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is too small, or the arrays are empty or differ in length.

    Example:
        >>> import hookline as hl
        >>> batches = hl.data.arrays({"x": np.arange(5), "y": np.arange(5) % 2}, batch_size=2)
        >>> [batch["x"].tolist() for batch in batches]
        [[0, 1], [2, 3], [4]]

    References:
        `tf.data.Dataset.from_tensor_slices(...).shuffle(...).repeat(...).batch(...)`, and `tf.estimator.inputs
        .numpy_input_fn`. Batches do not cross the end of an epoch, and the shuffle covers all examples.
    """
    return Arrays(tree, batch_size, shuffle_seed, epochs)


_CHECKED_EXAMPLES = 64


class Arrays:
    """Batches of the examples in arrays; see `arrays`."""

    def __init__(self, tree: Any, batch_size: int, shuffle_seed: int | None, epochs: int | None) -> None:
        self.tree = jax.tree.map(np.asarray, tree)
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.tree)}
        if len(lengths) != 1 or lengths <= {(), (0,)}:
            shown = jax.tree.map(np.shape, self.tree)
            raise ValueError(
                f"arrays requires arrays with the same number of examples, at least one, got arrays of shapes {shown}."
            )
        self.examples: int = lengths.pop()[0]
        self.batch_size = arguments.whole("arrays", "batch_size", batch_size, at_least=1)
        self.seed = None if shuffle_seed is None else arguments.whole("arrays", "shuffle_seed", shuffle_seed, 0)
        self.epochs = None if epochs is None else arguments.whole("arrays", "epochs", epochs, at_least=0)

    @property
    def last_size(self) -> int | None:
        """The number of examples of an epoch's last batch, if it is smaller than the first."""
        left = self.examples % self.batch_size
        return left if left and self.examples > self.batch_size and self.epochs != 0 else None

    @property
    def length(self) -> float:
        """The number of batches; infinity if there is no end."""
        return math.inf if self.epochs is None else self.epochs * -(-self.examples // self.batch_size)

    def __iter__(self) -> ArraysIterator:
        return ArraysIterator(self)

    def rows(self) -> RowsIterator:
        """Returns an iterator whose batches are gathered when their rows are read."""
        return RowsIterator(self)

    def fingerprint(self) -> list[Any]:
        """Returns numbers that identify the examples and their order, computed from a few examples."""
        some = np.linspace(0, self.examples - 1, min(self.examples, _CHECKED_EXAMPLES)).astype(int)
        found = crc32c(jax.tree.map(lambda leaf: leaf[some], self.tree))
        return [self.examples, self.batch_size, self.seed, self.epochs, found]

    def order(self, epoch: int) -> np.ndarray | None:
        """Returns the order of the examples in an epoch; `None` for the order of the arrays."""
        return None if self.seed is None else np.random.default_rng([self.seed, epoch]).permutation(self.examples)


class _State(dict[str, Any]):
    """The state of an iterator over arrays. It is immutable, so it is its own copy."""

    def __deepcopy__(self, memo: Any) -> _State:
        return self


class _Pass:
    """An iteration over the examples of `Arrays`. Its state is its position and an identification of the arrays."""

    def __init__(self, source: Arrays) -> None:
        self._source = source
        self._leaves, self._structure = jax.tree.flatten(source.tree)
        self._epoch = self._example = 0
        self._order: tuple[int, np.ndarray | None] = (-1, None)
        self._made_of = {"examples": source.examples, "shuffle_seed": source.seed}

    @property
    def _has_ended(self) -> bool:
        return self._source.epochs is not None and self._epoch >= self._source.epochs

    def _order_now(self) -> np.ndarray | None:
        if self._has_ended:
            raise StopIteration
        if self._order[0] != self._epoch:
            self._order = self._epoch, self._source.order(self._epoch)
        return self._order[1]

    def _move(self, examples: int) -> None:
        self._example += examples
        if self._example >= self._source.examples:
            self._epoch, self._example = self._epoch + 1, 0

    def get_state(self) -> dict[str, Any]:
        """Returns the position."""
        return _State(epoch=self._epoch, example=self._example, of=self._made_of)

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the position to that of another iterator.

        Raises:
            ValueError: That iterator had other examples, or another order.
        """
        if not all(isinstance(state.get(name), int) for name in ("epoch", "example")):
            raise ValueError(f"arrays cannot continue at {state!r}, which is no position of theirs.")
        if state["of"] != self._made_of:
            raise ValueError(
                f"arrays cannot continue at a position of other data: that was of {state['of']}, and this is "
                f"{self._made_of}."
            )
        self._epoch, self._example = state["epoch"], state["example"]


class ArraysIterator(_Pass):
    """One iteration over `Arrays`. Its batches are new memory, which the reader owns."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        order = self._order_now()
        part = slice(self._example, self._example + self._source.batch_size)
        if order is None:
            leaves = [leaf[part].copy() for leaf in self._leaves]
        else:
            chosen = order[part]
            leaves = [leaf.take(chosen, 0) for leaf in self._leaves]
        self._move(self._source.batch_size)
        return self._structure.unflatten(leaves)

    def read_many(self, count: int, capacity: int) -> tuple[Any, int]:
        """Returns the next batches of one size as one block, in arrays with one more dimension in front.

        Args:
            count: The largest number of batches. It stops before the smaller batch at the end of an epoch, which comes
                alone.
            capacity: The length of the new dimension. Rows after the batches are undefined.

        Returns:
            The arrays, and the number of batches in them.
        """
        self._order_now()
        source = self._source
        whole = min(source.batch_size, source.examples)
        size = min(whole, source.examples - self._example)
        buffers = [room((capacity, size, *leaf.shape[1:]), leaf.dtype) for leaf in self._leaves]
        done = 0
        while done < count and not self._has_ended:
            batches = min((source.examples - self._example) // size, count - done)
            if not batches or (done and size < whole):
                break
            order, part = self._order_now(), slice(self._example, self._example + batches * size)
            for leaf, buffer in zip(self._leaves, buffers, strict=True):
                rows = buffer[done : done + batches].reshape(batches * size, *leaf.shape[1:])
                if order is None:
                    rows[...] = leaf[part]
                else:  # No index is out of bounds; with mode="raise" NumPy gathers into a copy first.
                    leaf.take(order[part], 0, out=rows, mode="clip")
            done += batches
            self._move(batches * size)
        return self._structure.unflatten(buffers), done


class RowsIterator(_Pass):
    """One iteration over `Arrays` that gathers nothing: each array of a batch is a `Gathered`."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        order, begin = self._order_now(), self._example
        end = min(begin + self._source.batch_size, self._source.examples)
        chosen = np.arange(begin, end) if order is None else order[begin:end]
        self._move(self._source.batch_size)
        return self._structure.unflatten([Gathered(leaf, chosen) for leaf in self._leaves])
