"""Arrays in memory as a source of batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np

from hookline import arguments, log
from hookline.data.batches import crc32c
from hookline.data.lazy_gather import LazyGather, aligned_empty

_logger = log.get_logger(__name__)


def from_arrays(tree: Any, batch_size: int, shuffle_seed: int | None = None, epochs: int | None = 1) -> ArraySource:
    """Makes batches of the examples in arrays, as a source for `iterator`.

    Each epoch has every example once. If their number is not a multiple of `batch_size`, the last batch is smaller. The
    order of an epoch depends only on the seed and the epoch's number, so an iterator can continue in the middle of an
    epoch at no cost, also with another `batch_size` or other `epochs`.

    In SPMD processes, give every process the same arrays and the global batch size, as in a script for one process.
    Each process gathers only its own rows of every batch.

    Args:
        tree: An array, or a pytree of arrays with a common first dimension, which counts the examples.
        batch_size: The number of examples in a batch.
        shuffle_seed: Shuffles each epoch in its own order; `None` keeps the order.
        epochs: The number of passes over the examples; `None` repeats without end.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is too small, or the arrays are empty or differ in length.

    Example:
        >>> import hookline as hl
        >>> batches = hl.data.from_arrays({"x": np.arange(5), "y": np.arange(5) % 2}, batch_size=2)
        >>> [batch["x"].tolist() for batch in batches]
        [[0, 1], [2, 3], [4]]

    References:
        `tf.data.Dataset.from_tensor_slices(...).shuffle(...).repeat(...).batch(...)`, and `tf.estimator.inputs
        .numpy_input_fn`. Batches do not cross the end of an epoch, and the shuffle covers all examples.
    """
    return ArraySource(tree, batch_size, shuffle_seed, epochs)


# The largest number of examples, and of their bytes together, in the checksum.
_CHECKED_EXAMPLES, _CHECKED_BYTES = 64, 2**20


class ArraySource:
    """Batches of the examples in arrays; see `from_arrays`.

    Attributes:
        identity: The number of examples and the seed. A position of an iteration is valid in another one only if
            these are equal.
    """

    def __init__(self, tree: Any, batch_size: int, shuffle_seed: int | None, epochs: int | None) -> None:
        self.tree = jax.tree.map(np.asarray, tree)
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.tree)}
        if len(lengths) != 1 or lengths <= {(), (0,)}:
            shown = jax.tree.map(np.shape, self.tree)
            raise ValueError(
                f"from_arrays requires arrays with the same number of examples, at least one, got the shapes {shown}."
            )
        self.examples: int = lengths.pop()[0]
        self.batch_size = arguments.check_count("from_arrays", "batch_size", batch_size, at_least=1)
        self.seed = (
            None if shuffle_seed is None else arguments.check_int("from_arrays", "shuffle_seed", shuffle_seed, 0)
        )
        self.epochs = None if epochs is None else arguments.check_int("from_arrays", "epochs", epochs, at_least=0)
        self.identity = {"examples": self.examples, "shuffle_seed": self.seed}
        self._has_warned = False

    @property
    def last_size(self) -> int | None:
        """The number of examples of an epoch's last batch, if it is smaller than the first."""
        return self.last_size_from(0) if self.epochs != 0 else None

    @property
    def num_batches(self) -> float:
        """The number of batches; infinity if there is no end."""
        return self.batches_left(0, 0)

    def batches_left(self, epoch: int, example: int, *, drop: bool = False, passes: int = 1) -> float:
        """Returns the number of batches from an example of an epoch on, if the epochs are repeated `passes` times.

        `drop` leaves out smaller batches.
        """
        if self.epochs is None:
            return math.inf
        further = self.epochs * passes - epoch - 1
        if further < 0:
            return 0
        return self.batches_in_epoch(example, drop=drop) + further * self.batches_in_epoch(drop=drop)

    def batches_in_epoch(self, example: int = 0, *, drop: bool = False) -> int:
        """Returns the number of batches of an epoch from an example on; `drop` leaves out smaller ones."""
        count, rest = divmod(self.examples - example, min(self.batch_size, self.examples))
        return count + (rest > 0 and not drop)

    def position_after(self, epoch: int, example: int, batches: int) -> tuple[int, int]:
        """Returns the epoch and the example that follow after some batches.

        An epoch of 10 examples in batches of 4, from example 3 on: its two batches have 4 and 3 examples, then the next
        epoch begins. A third batch ends before example 4 of that epoch.
        """
        in_epoch = self.batches_in_epoch(example)
        if batches < in_epoch:
            return epoch, example + batches * self.batch_size
        epochs, rest = divmod(batches - in_epoch, self.batches_in_epoch())
        return epoch + 1 + epochs, rest * self.batch_size

    def last_size_from(self, example: int) -> int | None:
        """Returns the size of the last batch of an epoch that continues at an example, if it is smaller than others."""
        return (self.examples - example) % min(self.batch_size, self.examples) or None

    def check_sample(self, state: dict[str, Any]) -> None:
        """Warns, once, if the checksum in an iteration's state shows other values; a state without one passes."""
        if not self._has_warned and state.get("crc32c", self.sample_crc32c) != self.sample_crc32c:
            self._has_warned = True
            _logger.warning(
                "hookline.data.from_arrays: the %d examples have other values than at the checkpoint, by a checksum of "
                "some of them. They continue at the same position. If that is not intended, give the earlier arrays.",
                self.examples,
            )

    def __iter__(self) -> ArrayIterator:
        return ArrayIterator(self)

    def is_position(self, epoch: Any, example: Any) -> bool:
        """Returns whether the example, counted from the beginning of the epoch, may be the next one to read."""
        return isinstance(epoch, int) and isinstance(example, int) and epoch >= 0 and 0 <= example < self.examples

    def iter_lazily(self) -> LazyArrayIterator:
        """Returns an iterator whose batches are gathered when their rows are read."""
        return LazyArrayIterator(self)

    @functools.cached_property
    def sample_crc32c(self) -> int:
        """A checksum of a few examples. Of a file that is mapped into memory, it reads hardly more than these."""
        leaves = jax.tree.leaves(self.tree)
        size = sum(leaf.nbytes for leaf in leaves) // self.examples
        count = min(self.examples, _CHECKED_EXAMPLES, max(1, _CHECKED_BYTES // max(size, 1)))
        some = np.linspace(0, self.examples - 1, count).astype(int)
        return crc32c([leaf[some] for leaf in leaves])

    def fingerprint(self) -> list[Any]:
        """Returns numbers that identify the examples and their order, computed from a few examples."""
        return [self.examples, self.batch_size, self.seed, self.epochs, self.sample_crc32c]

    def order(self, epoch: int) -> np.ndarray | None:
        """Returns the permutation of the examples in an epoch; `None` without shuffling."""
        return None if self.seed is None else np.random.default_rng([self.seed, epoch]).permutation(self.examples)


class _State(dict[str, Any]):
    """The state of an iterator over arrays. It is immutable, so it is its own copy."""

    def __deepcopy__(self, memo: Any) -> _State:
        return self


class ArrayIteration:
    """An iteration over the examples of an `ArraySource`. Its state has its position, and identifies the arrays.

    A position is an example of an epoch, so it does not depend on the batch size. After 37 batches of 8 from 240
    examples it is example 56 of epoch 1 (the second epoch). Batches of 16 continue there with examples 56 to 71, and
    the last batch of that epoch has 8.

    Attributes:
        source: The arrays.
        passes: Returns how many times it repeats their epochs.
    """

    def __init__(self, source: ArraySource) -> None:
        self.source = source
        self.passes: Callable[[], int] = lambda: 1
        self._leaves, self._structure = jax.tree.flatten(source.tree)
        self._epoch = self._example = 0
        self._order: tuple[int, np.ndarray | None] = (-1, None)
        self._identity = {
            "of": source.identity,
            "batch_size": source.batch_size,
            "crc32c": source.sample_crc32c,
        }

    def __iter__(self) -> Self:
        return self

    @property
    def _has_ended(self) -> bool:
        return self.source.epochs is not None and self._epoch >= self.source.epochs * self.passes()

    def _current_order(self) -> np.ndarray | None:
        if self._has_ended:
            raise StopIteration
        if self._order[0] != self._epoch:
            self._order = self._epoch, self.source.order(self._epoch)
        return self._order[1]

    def _advance(self, examples: int) -> None:
        """Moves the position forward by some examples, at most to the end of the epoch."""
        self._example += examples
        if self._example >= self.source.examples:
            self._epoch, self._example = self._epoch + 1, 0

    def get_state(self) -> dict[str, Any]:
        """Returns the position."""
        return _State(epoch=self._epoch, example=self._example, **self._identity)

    def state_after(self, state: dict[str, Any], count: int) -> dict[str, Any]:
        """Returns the state `count` batches after another one."""
        epoch, example = self.source.position_after(state["epoch"], state["example"], count)
        return _State(epoch=epoch, example=example, **self._identity)

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the position from the state of another iterator.

        Raises:
            ValueError: That iterator had other examples, or another order.
        """
        if not self.source.is_position(state.get("epoch"), state.get("example")) or "of" not in state:
            raise ValueError(f"hookline.data.from_arrays cannot continue at {state!r}, which is no position in them.")
        if state["of"] != self.source.identity:
            raise ValueError(
                f"hookline.data.from_arrays cannot continue at a position in other data: the position is of "
                f"{state['of']}, and these arrays are {self.source.identity}. Give the earlier arrays; or resume=False "
                f"(in a Loop resume_data=False) to start from the beginning."
            )
        self.source.check_sample(state)
        self._epoch, self._example = state["epoch"], state["example"]
        before, size = state.get("batch_size", self.source.batch_size), self.source.batch_size
        if before != size:
            last = self.source.last_size_from(self._example)
            odd = f"; the last batch of this epoch has {last} examples" if last else ""
            _logger.info(
                "hookline.data.from_arrays: a position of batch_size=%d continues with batch_size=%d, at example %d of "
                "%d in epoch %d%s.",
                before,
                size,
                self._example,
                self.source.examples,
                self._epoch,
                odd,
            )


class ArrayIterator(ArrayIteration):
    """One iteration over an `ArraySource`. Its batches are new memory, which the reader owns."""

    def __next__(self) -> Any:
        order = self._current_order()
        part = slice(self._example, self._example + self.source.batch_size)
        if order is None:
            leaves = [leaf[part].copy() for leaf in self._leaves]
        else:
            chosen = order[part]
            leaves = [leaf.take(chosen, 0) for leaf in self._leaves]
        self._advance(self.source.batch_size)
        return self._structure.unflatten(leaves)

    def read_many(self, count: int, capacity: int) -> tuple[Any, int]:
        """Returns the next batches of one size as one block, in arrays with one more dimension in front.

        Args:
            count: The largest number of batches. The smaller batch at the end of an epoch is returned alone, by the
                next call.
            capacity: The length of the new dimension. Rows after the batches are undefined.

        Returns:
            The arrays, and the number of batches in them.
        """
        self._current_order()
        source = self.source
        full_size = min(source.batch_size, source.examples)
        size = min(full_size, source.examples - self._example)
        buffers = [aligned_empty((capacity, size, *leaf.shape[1:]), leaf.dtype) for leaf in self._leaves]
        done = 0
        while done < count and not self._has_ended:
            batches = min((source.examples - self._example) // size, count - done)
            if not batches or (done and size < full_size):
                break
            order, part = self._current_order(), slice(self._example, self._example + batches * size)
            for leaf, buffer in zip(self._leaves, buffers, strict=True):
                rows = buffer[done : done + batches].reshape(batches * size, *leaf.shape[1:])
                if order is None:
                    rows[...] = leaf[part]
                else:  # No index is out of bounds; with mode="raise" NumPy gathers into a copy first.
                    leaf.take(order[part], 0, out=rows, mode="clip")
            done += batches
            self._advance(batches * size)
        return self._structure.unflatten(buffers), done


class LazyArrayIterator(ArrayIteration):
    """One iteration over an `ArraySource` that gathers nothing: each array of a batch is a `LazyGather`."""

    def __next__(self) -> Any:
        order, begin = self._current_order(), self._example
        end = min(begin + self.source.batch_size, self.source.examples)
        chosen = np.arange(begin, end) if order is None else order[begin:end]
        self._advance(self.source.batch_size)
        return self._structure.unflatten([LazyGather(leaf, chosen) for leaf in self._leaves])
