"""The protocol of servers and workers: methods, records, and the encoding of values as arrays and tree structures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np


class CodecError(TypeError):
    """An object cannot be encoded, or a message cannot be decoded."""


SMALL_BYTES = 16 * 1024
"""An array of up to this size is sent inside the body of its message: a copy costs less than the overhead per array."""

_NUMBERS = "biufc"

SmallArray = tuple[str, tuple[int, ...], bytes]
"""A small array: dtype, shape and bytes."""


@dataclass(frozen=True, slots=True)
class EncodedArray:
    """An array of a dtype that NumPy itself does not support.

    Attributes:
        kind: `"dtype"` (such as bfloat16, encoded as unsigned integers of the same width) or `"key"` (random keys).
        name: The dtype, or the implementation of the keys.
        data: The bits, as an array.
    """

    kind: str
    name: str
    data: np.ndarray | SmallArray


EncodedLeaf = np.ndarray | SmallArray | EncodedArray
"""One encoded array."""

Leaves = list[EncodedLeaf]
"""The encoded arrays of one value."""


def encode_leaf(leaf: Any) -> EncodedLeaf:
    """Encodes an array; a large array in host memory is not copied.

    Example:
        >>> encode_leaf(jnp.ones(2, jnp.bfloat16))
        EncodedArray(kind='dtype', name='bfloat16', data=('<u2', (2,), b'...'))
    """
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return EncodedArray("key", str(jax.random.key_impl(leaf)), _encode_array(np.asarray(jax.random.key_data(leaf))))
    array = np.asarray(leaf) if dtype is not None else np.asarray(leaf, jax.dtypes.result_type(leaf))
    if array.dtype.kind in _NUMBERS:
        return _encode_array(array)
    # NumPy cannot pickle such an array without a copy, and Ray cannot share it.
    bits = np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")
    return EncodedArray("dtype", array.dtype.name, _encode_array(bits))


def _encode_array(array: np.ndarray) -> np.ndarray | SmallArray:
    return array if array.nbytes > SMALL_BYTES else (array.dtype.str, array.shape, array.tobytes())


def checked_dtype(name: Any) -> np.dtype:
    """Returns the dtype with a name that another process sent. Only numbers are allowed: no bytes can be pointers.

    Raises:
        CodecError: There is no such dtype, or it is not one of numbers.

    Example:
        >>> checked_dtype("<f4")
        dtype('float32')
    """
    try:
        dtype = np.dtype(name)
    except Exception as error:
        raise CodecError(f"{name!r} is not a dtype.") from error
    if dtype.kind not in _NUMBERS:
        raise CodecError(f"An array of dtype {name!r} is not plain data.")
    return dtype


def decode_leaf(encoded: EncodedLeaf) -> Any:
    """Decodes an array: to NumPy, or to a JAX array for random keys.

    Raises:
        CodecError: Its dtype is not one that `encode_leaf` encodes.

    Example:
        >>> decode_leaf(encode_leaf(jnp.ones(2, jnp.bfloat16))).dtype
        dtype(bfloat16)
    """
    if isinstance(encoded, np.ndarray):
        return encoded
    if not isinstance(encoded, EncodedArray):
        dtype, shape, data = encoded
        return np.ndarray(shape, checked_dtype(dtype), data)
    bits = decode_leaf(encoded.data)
    if encoded.kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(bits), impl=encoded.name)
    dtype = jnp.dtype(encoded.name)
    # Dtypes that other packages add to NumPy; none of them contains pointers.
    if dtype.isbuiltin != 2:
        raise CodecError(f"An array of dtype {encoded.name!r} is not plain data.")
    return bits.view(dtype)


def encode_leaves(leaves: Iterable[Any]) -> Leaves:
    """Encodes several arrays."""
    return [encode_leaf(leaf) for leaf in leaves]


def decode_leaves(leaves: Iterable[EncodedLeaf]) -> tuple[Any, ...]:
    """Decodes several arrays."""
    return tuple([decode_leaf(leaf) for leaf in leaves])


class Structure:
    """A tree structure that can be pickled, with containers of any class.

    It pickles the containers, with zeros as leaves, because JAX describes some different containers of libraries as
    equal.

    Example:
        >>> import pickle
        >>> treedef = jax.tree.structure({"w": (1, None), "b": 2})
        >>> pickle.loads(pickle.dumps(Structure(treedef))).treedef == treedef
        True
    """

    __slots__ = ("treedef",)

    def __init__(self, treedef: Any) -> None:
        self.treedef = treedef

    def __getstate__(self) -> tuple[Any, int]:
        count = self.treedef.num_leaves
        return jax.tree.unflatten(self.treedef, [0] * count), count

    def __setstate__(self, state: tuple[Any, int]) -> None:
        skeleton, count = state
        self.treedef = jax.tree.structure(skeleton)
        if self.treedef.num_leaves != count:
            raise TypeError(
                f"A value has containers that are not registered with JAX in this process ({skeleton!r}): define and "
                f"register them with JAX in a module that servers and workers import, not in the script."
            )


def flatten(value: Any) -> tuple[Leaves, Structure]:
    """Encodes a pytree: returns its leaves and its structure."""
    leaves, treedef = jax.tree.flatten(value)
    return encode_leaves(leaves), Structure(treedef)


BLOCKING_METHODS = ("wait_until_ready", "wait_for_step", "wait_delivered", "admit", "renew", "pull_after", "collect")
"""The methods that block, or must not wait for others. They run in their own threads, all others one at a time."""

DEFERRED_METHODS = ("stage", "commit")
"""The methods that are answered when their transaction is decided; until then they block no other call."""

SOCKET_METHODS = (
    *DEFERRED_METHODS,
    "pull",
    "pull_after",
    "collect",
    "begin_snapshot",
    "outcome",
    "admit",
    "renew",
    "leave",
)
"""The methods that workers call in steps and snapshots, over connections; all others go over Ray."""

PEER_METHODS = ("vote", "report_stuck", "deliver", "abandon")
"""The methods that servers call on each other."""

METHODS = frozenset(
    (
        *BLOCKING_METHODS,
        *SOCKET_METHODS,
        *PEER_METHODS,
        "status",
        "begin",
        "register",
        "publish",
        "end_training",
        "structures",
    )
)
"""All methods that other processes may call."""

Ticket = tuple[str, str]
"""(incarnation, epoch): the instance of a server, and the initialisation or restore, for which a call is valid."""

Transaction = tuple[str, int]
"""The name of a transaction: (sender, number). The numbers of a sender increase."""


class PeerClient(Protocol):
    """A server's connection to the others."""

    def notify(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of another server without waiting; an exception goes to `on_failure`, in any thread."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


class Reply(Protocol):
    """The future result of a call."""

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error."""
        ...


class Transport(Protocol):
    """Calls servers by index."""

    @property
    def count(self) -> int:
        """The number of servers."""
        ...

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call. A server may execute concurrent calls in any order."""
        ...

    def peer_client(self) -> PeerClient | None:
        """Returns the object with which servers call each other."""
        ...

    def close(self) -> None:
        """Closes the connections of this process; connections between servers stay."""
        ...


class Epoch(NamedTuple):
    """The lifetime of the servers' values: from one initialisation or restore to the next.

    Attributes:
        name: Unique for each epoch.
        incarnations: The servers' instances, in order. The first server holds the global step.
        updates: The fingerprints of the chief's updates, by name.
        variables: The specs of the chief's variables, by name.
        owners: The server of each variable, by name.
        max_staleness: The number of other workers' updates that an update may miss; `None` for no bound.
    """

    name: str
    incarnations: tuple[str, ...]
    step_name: str | None
    updates: Mapping[str, str]
    variables: Mapping[str, str]
    owners: Mapping[str, int]
    max_staleness: int | None = None

    def ticket(self, server: int) -> Ticket:
        """Returns the ticket for calls of a server in this epoch."""
        return self.incarnations[server], self.name


class Status(NamedTuple):
    """The state of a server, for workers.

    Attributes:
        initialized: Names of the variables that have values.
        step: The global step; on the step server only.
        ready_at: The global step at which the chief first published the model; on the step server only.
    """

    incarnation: str
    epoch: Epoch | None
    initialized: frozenset[str]
    step: int
    ready_at: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a transaction.

    Attributes:
        accepted: Whether it was applied. False if the global step was its `last_step` or more, or if its sender gave it
            up; then nothing was applied.
        step: The current global step.
        counts: For each server, the number of accepted transactions with a part for it.
        sent_seqs: For each server, the number of the last message that the step server sent to it.
        values: The requested values of the step server, after the transaction.
    """

    accepted: bool
    step: int
    counts: tuple[int, ...]
    sent_seqs: tuple[int, ...]
    values: dict[str, Leaves]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Values of variables, after the first `transactions` transactions of their server."""

    transactions: int
    values: dict[str, Leaves]
