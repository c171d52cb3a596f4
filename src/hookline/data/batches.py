"""Copies, checks and converts batches between a source and a run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.coordination import process_group
from hookline.data import lazy_gather
from hookline.data.lazy_gather import LazyGather, aligned_empty
from hookline.errors import InvalidArgumentError
from hookline.graph import placement
from hookline.graph.nodes import spec as specs

_logger = log.get_logger(__name__)

LastBatch = Literal["keep", "drop", "pad"]
# The number of rows that one program takes from an array on a device; with more, compilation takes longer.
_ROWS = 16
# If a step is compiled for more lengths than this, a warning is logged.
_MANY_LENGTHS = 16
# The address in the default `repr` of an object.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def check_last_batch(who: str, last_batch: Any) -> None:
    """Raises `ValueError` for an unknown `last_batch`."""
    if last_batch not in get_args(LastBatch):
        raise ValueError(f"{who} requires one of {', '.join(get_args(LastBatch))} as last_batch, got {last_batch!r}.")


class Padded(NamedTuple):
    """A batch that was padded to the size of the others.

    Attributes:
        batch: The batch, padded with zeros.
        mask: One boolean for each example; true for a real one.

    Example:
        >>> import hookline as hl, numpy as np
        >>> numbers = hl.data.iterator(hl.data.from_arrays(np.array([1, 2, 3]), batch_size=2), last_batch="pad")
        >>> with hl.Session() as sess:
        ...     full, short = sess.run(numbers), sess.run(numbers)
        >>> print(full.batch, full.mask, short.batch, short.mask)
        [1 2] [ True  True] [3 0] [ True False]
    """

    batch: Any
    mask: Any


def copy_owned(batch: Any) -> Any:
    """Copies the mutable arrays of a batch, because a generator may fill the same arrays again."""
    return jax.tree.map(lambda leaf: leaf if _is_immutable(leaf) else np.array(leaf), batch)


def _is_immutable(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return False
    return isinstance(leaf, jax.Array | str | bytes | LazyGather) or is_object(leaf)


def stack(rows: Sequence[Any], capacity: int) -> Any:
    """Stacks batches of one form into a block of length `capacity`; the unused rows are undefined."""
    return jax.tree.map(lambda *leaves: _stack_leaves(leaves, capacity), *rows)


def _stack_leaves(leaves: tuple[Any, ...], capacity: int) -> Any:
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return jnp.stack([*leaves, *leaves[-1:] * (capacity - len(leaves))])
    if all(isinstance(leaf, LazyGather) for leaf in leaves):
        return lazy_gather.stack(leaves, capacity)
    block = aligned_empty((capacity, *leaves[0].shape), leaves[0].dtype)
    for index, leaf in enumerate(leaves):
        block[index] = leaf
    return block


def get_row(block: Any, index: int) -> Any:
    """Returns one batch of a block."""
    leaves, structure = jax.tree.flatten(block)
    return structure.unflatten(
        [leaf[index] if isinstance(leaf, np.ndarray) else _index_row(leaf, index) for leaf in leaves]
    )


def unstack(block: Any, count: int) -> list[Any]:
    """Splits the first `count` batches of a block into single batches."""
    leaves, structure = jax.tree.flatten(block)
    picked = [leaf[:count] if isinstance(leaf, np.ndarray) else _unstack_leaf(leaf, count) for leaf in leaves]
    return [structure.unflatten(row) for row in zip(*picked, strict=True)] if picked else [block] * count


@jax.jit
def _index_row(leaf: jax.Array, index: int) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)


def _unstack_leaf(leaf: jax.Array, count: int) -> list[jax.Array]:
    """Returns the first rows of an array, 16 for each call of a program."""
    rows: list[jax.Array] = []
    first = jax.device_put(np.int32(0))  # An explicit transfer, which `jax.transfer_guard` allows.
    for start in range(0, count, _ROWS):
        some, first = _some_rows(leaf, first)
        rows += some[start - max(0, min(start, len(leaf) - _ROWS)) :]
    return rows[:count]


@jax.jit
def _some_rows(leaf: jax.Array, first: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Returns 16 rows from index `first` on, or the last 16, and the index after them."""
    some = jax.lax.dynamic_slice_in_dim(leaf, first, min(_ROWS, len(leaf)))
    return [jax.lax.index_in_dim(some, index, keepdims=False) for index in range(len(some))], first + _ROWS


def is_object(leaf: Any) -> bool:
    """Returns whether a leaf is text or an object, which no device can hold."""
    kind = np.asarray(leaf).dtype.kind if not hasattr(leaf, "dtype") else getattr(leaf.dtype, "kind", "")
    return kind in ("O", "S", "U")


def nbytes(batch: Any) -> int:
    """Returns the bytes of a batch's arrays and texts; for other objects, `sys.getsizeof`."""
    return sum(_nbytes(leaf) for leaf in jax.tree.leaves(batch))


def _nbytes(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O":
        return leaf.nbytes + sum(map(_nbytes, leaf.flat))
    return getattr(leaf, "nbytes", None) or sys.getsizeof(leaf)


def crc32c(batch: Any) -> int:
    """Returns a checksum of a batch: of its structure, shapes, dtypes and numbers."""
    leaves, structure = jax.tree.flatten(batch)
    total = google_crc32c.extend(0, str(structure).encode())
    for leaf in leaves:
        if is_object(leaf):
            total = google_crc32c.extend(total, _text_of(leaf).encode("utf-8", "surrogatepass"))
            continue
        is_key = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        total = placement.crc32c(np.asarray(jax.random.key_data(leaf) if is_key else leaf), total)
    return total


def _text_of(leaf: Any) -> str:
    """Returns a description of a text or an object that is the same in other processes."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype}{leaf.shape}{[_text_of(item) for item in leaf.flat]}"
    if isinstance(leaf, set | frozenset):
        return f"{type(leaf).__name__}{sorted(map(_text_of, leaf))}"
    return _ADDRESS.sub("", repr(leaf))


class BatchSpec:
    """Checks batches against the common form of an iterator, and drops or pads shorter ones.

    Args:
        who: The iterator, for messages.
        example: A batch, or `jax.ShapeDtypeStruct` like it; `None` if none is known.
        last_batch: As in `iterator`.
        given_spec: The user's spec; `None` to use the example's.

    Attributes:
        spec: The spec of a run's batch.
        example: The spec of the first run's batch, with a known number of examples.
        last_batch: As in `iterator`.
        host_only: Whether batches contain only text or objects.
        block_error: The reason why batches cannot be stacked; `None` if they can.
    """

    def __init__(self, who: str, example: Any, last_batch: LastBatch, given_spec: Any = None) -> None:
        self._who, self.last_batch, self._is_given = who, last_batch, given_spec is not None
        texts = [_is_text(leaf) for leaf in jax.tree.leaves(example)]
        self.host_only = bool(texts) and all(texts)
        self._fixed_spec = _spec_of(example if given_spec is None else given_spec)
        self._size = _size(example if given_spec is None else given_spec)
        self._wanted_spec = self._fixed_spec
        if last_batch == "keep" and self._size is not None and self._fixed_spec is not specs.UNKNOWN:
            self._wanted_spec = jax.tree.map(_with_open_length, self._fixed_spec)
        self._leaves, self._structure = jax.tree.flatten(self._wanted_spec)
        self._paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(self._wanted_spec)]
        self._seen: set[Any] = set()
        self._lengths: set[Any] | None = None
        self.spec, self.example = self._wanted_spec, _spec_of(example)
        is_text = example is not None and self._fixed_spec is specs.UNKNOWN
        self.block_error: str | None = None
        if self._fixed_spec is specs.UNKNOWN:
            self.block_error = (
                "gives text or objects" if any(texts) else "gives batches whose form is not known before the first run"
            )
        if self._size is None and (last_batch == "pad" or (last_batch == "drop" and is_text)):
            raise InvalidArgumentError.from_message(
                f"{who}: last_batch={last_batch!r} requires batches whose arrays have a common length, the number of "
                f"examples, got {specs.describe(self._fixed_spec)}.",
            )
        if last_batch == "pad":
            if is_text:
                raise InvalidArgumentError.from_message(
                    f"{who}: last_batch='pad' requires batches of numbers; text and objects have no zero."
                )
            mask = jax.ShapeDtypeStruct((self._size,), np.dtype(bool))
            self.spec, self.example = Padded(self._fixed_spec, mask), Padded(self.example, mask)

    def allow_any_lengths(self) -> bool:
        """Accepts arrays of any lengths from now on, unless the user has given a spec; returns whether it does.

        With "drop" and "pad" every batch has as many examples as the first one. The spec stays the first batch's, and
        a step is compiled once for each of the other lengths.
        """
        if self._is_given or self._fixed_spec is specs.UNKNOWN:
            return False
        firsts = [leaf.shape[:1] if self.last_batch != "keep" else (None,) for leaf in self._leaves]
        self._leaves = [
            specs.array_spec(leaf.dtype, (*first, *[None] * len(leaf.shape[1:]))) if leaf.shape else leaf
            for leaf, first in zip(self._leaves, firsts, strict=True)
        ]
        self._lengths = set()
        return True

    def fit(self, batch: Any, count: int | None = None) -> Any | None:
        """Converts a batch, or a block of `count` batches, to this form; returns `None` for a batch to be dropped.

        Raises:
            InvalidArgumentError: The batch does not have this form.
        """
        leaves, structure = jax.tree.flatten(batch)
        kind = None
        if structure == self._structure:
            try:
                kind = count is None, *[(leaf.shape, leaf.dtype) for leaf in leaves]
            except AttributeError:  # Text, or an object.
                kind = None
        if kind not in self._seen:
            leading_axes = 0 if count is None else 1
            size, is_short = _size(batch, leading_axes), self.is_short(batch, leading_axes)
            if is_short and self.last_batch == "drop":
                return None
            if self._fixed_spec is specs.UNKNOWN:
                return batch
            if self._size is not None and len(lengths := _lengths(batch, leading_axes)) > 1:
                raise self._mismatch_error(f"has arrays of different lengths, {sorted(lengths)}, but one is required")
            if self.last_batch == "pad" and is_short:
                leaves = [_pad(leaf, self._size, leading_axes) for leaf in leaves]
            if structure != self._structure:
                raise self._mismatch_error(f"has the structure {structure}, but {self._structure} is required")
            cast = self._cast(leaves, count)
            if self._lengths is not None:
                self._count_lengths(tuple([np.shape(leaf)[leading_axes:] for leaf in leaves]))
            if is_short and self.last_batch == "pad":
                return self._padded(jax.tree.unflatten(structure, cast), leaves, size or 0, leading_axes)
            if all(one is other for one, other in zip(cast, leaves, strict=True)):
                self._seen.add(kind)  # No check or conversion depends on the values.
            else:
                batch = jax.tree.unflatten(structure, cast)
        if self.last_batch != "pad":
            return batch
        return self._padded(batch, leaves, self._size or 0, 0 if count is None else 1)

    def is_short(self, batch: Any, leading_axes: int = 0) -> bool:
        """Returns whether a batch has fewer examples than the first one."""
        size = _size(batch, leading_axes)
        return size is not None and self._size is not None and size < self._size

    def _padded(self, batch: Any, leaves: list[Any], size: int, leading_axes: int) -> Padded:
        """Returns the padded batch, or block, with a mask of the first `size` examples."""
        mask = np.arange(self._size or 0) < size
        return Padded(
            batch, np.broadcast_to(mask, (*np.shape(leaves[0])[:leading_axes], len(mask))) if leading_axes else mask
        )

    def _cast(self, given: list[Any], count: int | None) -> list[Any]:
        """Returns the leaves of a batch, or of a block, with the required dtypes."""
        leaves, leading_axes = [], 0 if count is None else 1
        for path, spec, each in zip(self._paths, self._leaves, given, strict=True):
            # All rows are checked, other processes' too, so that a run raises the same error in all of them.
            leaf: Any = np.asarray(each) if isinstance(each, LazyGather) and each.dtype != spec.dtype else each
            where = f"at {path} " if path else ""
            if is_object(leaf):
                raise self._mismatch_error(f"{where}holds text or an object, but {specs.describe(spec)} is required")
            problem = specs.describe_mismatch(spec, leaf.shape[leading_axes:], leaf.dtype)
            if problem is None and not isinstance(leaf, jax.Array):
                problem = specs.describe_overflow(leaf[:count] if leading_axes else leaf, spec.dtype)
            if problem:
                raise self._mismatch_error(where + problem)
            if leaf.dtype == spec.dtype:
                leaves.append(leaf)
            elif leading_axes and not isinstance(leaf, jax.Array):
                leaves.append(aligned_empty(leaf.shape, np.dtype(spec.dtype)))
                leaves[-1][:count] = leaf[:count]  # The unused rows may have values that cannot be cast.
            else:
                leaves.append(leaf.astype(spec.dtype))
        return leaves

    def _count_lengths(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Warns once if a step is compiled for many lengths."""
        assert self._lengths is not None, "The caller has checked it."
        if shapes not in self._lengths and len(self._lengths) <= _MANY_LENGTHS:
            self._lengths.add(shapes)
            if len(self._lengths) > _MANY_LENGTHS and process_group.is_primary():
                found = specs.describe(self._structure.unflatten(map(_of_shape, self._leaves, shapes)))
                _logger.warning(
                    "%s: its batches have more than %d different lengths, and the step is compiled once for each: now "
                    "for %s. Pad them to a few lengths (buckets).",
                    self._who,
                    _MANY_LENGTHS,
                    found,
                )

    def _mismatch_error(self, problem: str) -> InvalidArgumentError:
        may = (
            f"the number of examples may be smaller (last_batch={self.last_batch!r}), and lengths may differ if they "
            f"are symbols of jax.export.symbolic_shape in spec=..."
        )
        if self._lengths is not None:
            may = "the lengths of arrays may differ" + ", with one number of examples" * (self._size is not None)
        return InvalidArgumentError.from_message(
            f"{self._who}: a batch {problem}. All batches must be like the first one, or like spec=...; only {may}.",
        )


def _spec_of(example: Any) -> Any:
    if example is None or any(_is_text(leaf) for leaf in jax.tree.leaves(example)):
        return specs.UNKNOWN
    try:
        return specs.of_value(example)
    except (TypeError, OverflowError):
        return specs.UNKNOWN


def _is_text(leaf: Any) -> bool:
    return not isinstance(leaf, jax.ShapeDtypeStruct) and is_object(leaf)


def _size(batch: Any, leading_axes: int = 0) -> int | None:
    """Returns the common length of all arrays after `leading_axes` dimensions, the number of examples; or None."""
    lengths = _lengths(batch, leading_axes)
    # An open length in a spec is no number of examples.
    return lengths.pop() if len(lengths) == 1 and all(isinstance(length, int) for length in lengths) else None


def _lengths(batch: Any, leading_axes: int = 0) -> set[int]:
    return {np.shape(leaf)[leading_axes] for leaf in jax.tree.leaves(batch) if np.ndim(leaf) > leading_axes}


def _of_shape(spec: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, spec.dtype)


def _with_open_length(spec: Any) -> Any:
    return specs.array_spec(spec.dtype, (None, *(specs.open_shape(spec) or ())[1:])) if spec.shape else spec


def _pad(leaf: Any, size: int | None, leading_axes: int) -> Any:
    missing = (size or 0) - leaf.shape[leading_axes] if np.ndim(leaf) > leading_axes else 0
    if missing <= 0:
        return leaf
    zeros = np.zeros((*leaf.shape[:leading_axes], missing, *leaf.shape[leading_axes + 1 :]), leaf.dtype)
    return np.concatenate([np.asarray(leaf), zeros], leading_axes)
