"""The calls between servers and workers, and the form of values in them: NumPy arrays or their bytes, and trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np


class CodecError(TypeError):
    """An object cannot be sent as plain data, or a message cannot be read as such."""


SMALL_BYTES = 16 * 1024
"""An array of up to this size travels as bytes: copying them costs less than the work around each array."""

_NUMBERS = "biufc"

SmallArray = tuple[str, tuple[int, ...], bytes]
"""A small array: dtype, shape and bytes."""


@dataclass(frozen=True, slots=True)
class EncodedArray:
    """An array of a dtype that NumPy itself does not support.

    Attributes:
        kind: `"dtype"` (bfloat16 and its like, as unsigned integers of the same width) or `"key"` (random keys).
        name: The dtype, or the implementation of the keys.
        data: The bits.
    """

    kind: str
    name: str
    data: np.ndarray | SmallArray


EncodedLeaf = np.ndarray | SmallArray | EncodedArray
"""One array in the form in which it is sent."""

Leaves = list[EncodedLeaf]
"""The arrays of one value."""


def encode_leaf(leaf: Any) -> EncodedLeaf:
    """Converts an array to the form in which it is sent; a large array in this process's memory is not copied.

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
    """Returns a dtype named by another process: one of plain numbers, which no bytes can turn into pointers.

    Raises:
        NotPlainError: The dtype is another one.

    Example:
        >>> checked_dtype("<f4")
        dtype('float32')
    """
    try:
        dtype = np.dtype(name)
    except Exception as error:
        raise CodecError(f"{name!r} is no dtype.") from error
    if dtype.kind not in _NUMBERS:
        raise CodecError(f"An array of dtype {name!r} is not plain data.")
    return dtype


def decode_leaf(wire: EncodedLeaf) -> Any:
    """Returns the array: NumPy, or a JAX array for random keys.

    Raises:
        NotPlainError: Its dtype is not one that `pack` sends.

    Example:
        >>> decode_leaf(encode_leaf(jnp.ones(2, jnp.bfloat16))).dtype
        dtype(bfloat16)
    """
    if isinstance(wire, np.ndarray):
        return wire
    if not isinstance(wire, EncodedArray):
        dtype, shape, data = wire
        return np.ndarray(shape, checked_dtype(dtype), data)
    bits = decode_leaf(wire.data)
    if wire.kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(bits), impl=wire.name)
    dtype = jnp.dtype(wire.name)
    # Dtypes that other packages add to NumPy; none of them contains pointers.
    if dtype.isbuiltin != 2:
        raise CodecError(f"An array of dtype {wire.name!r} is not plain data.")
    return bits.view(dtype)


def encode_leaves(leaves: Iterable[Any]) -> Leaves:
    """Converts several arrays to the form in which they are sent."""
    return [encode_leaf(leaf) for leaf in leaves]


def decode_leaves(leaves: Iterable[EncodedLeaf]) -> tuple[Any, ...]:
    """Converts several arrays from the form in which they are sent."""
    return tuple([decode_leaf(leaf) for leaf in leaves])


class Structure:
    """A tree structure that can be pickled, with containers of any class.

    The containers themselves are pickled, around zeros, because some libraries' containers differ although JAX's
    description of them is equal.

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
                f"A value is made of containers that JAX does not know as such in this process ({skeleton!r}): define "
                f"them, and register them with JAX, in a module that servers and workers import, not in the script."
            )


def flatten(value: Any) -> tuple[Leaves, Structure]:
    """Converts a pytree to the form in which it is sent."""
    leaves, treedef = jax.tree.flatten(value)
    return encode_leaves(leaves), Structure(treedef)


BLOCKING_METHODS = ("wait_until_ready", "wait_for_step", "wait_delivered", "admit", "renew", "pull_after", "collect")
"""The methods that block, or must not wait for others. They run in their own threads, all others one at a time."""

DEFERRED_METHODS = ("stage", "commit")
"""The methods whose answer comes when a transaction is decided; until then they block no other call."""

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
"""The methods that workers call in steps and snapshots. They have their own connections, all others go over Ray."""

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
"""(incarnation, epoch): the instance of a server, and the initialisation or restore, that a call is meant for."""

Transaction = tuple[str, int]
"""(sender, number): the numbers of a sender increase."""


class PeerClient(Protocol):
    """A server's connection to the others."""

    def notify(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of another server without waiting; `on_failure` gets its exception, from any thread."""
        ...

    def close(self) -> None:
        """Forgets the other servers."""
        ...


class Reply(Protocol):
    """The result of a call under way."""

    def get(self) -> Any:
        """Waits for the result and returns it, or raises the server's error."""
        ...


class Transport(Protocol):
    """Calls servers by number."""

    @property
    def count(self) -> int:
        """The number of servers."""
        ...

    def call(self, server: int, method: str, *args: Any) -> Reply:
        """Starts a call. Calls to one server that are under way at the same time may be carried out in any order."""
        ...

    def peer_client(self) -> PeerClient | None:
        """Returns the object with which servers call each other."""
        ...

    def close(self) -> None:
        """Ends the connections of the caller; those of servers to each other stay."""
        ...


class Epoch(NamedTuple):
    """One life of the values: from an initialisation or a restore to the next.

    Attributes:
        name: Unique for each epoch.
        incarnations: The servers' instances, in order. The first holds the global step.
        updates: The chief's updates: fingerprints by name.
        variables: The specs of the chief's variables, by name.
        owners: The server of each variable.
        max_staleness: The number of updates of others that an update may miss; `None` for no limit.
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
    """A server's description of itself for workers.

    Attributes:
        initialized: Names of the variables that have values.
        step: The global step; on the step server only.
        ready_at: The global step at which the chief first declared the model ready; on the step server only.
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
        accepted: False if the limit on the step refused it or it was given up; then nothing was applied.
        step: The global step now.
        counts: For each server, the number of transactions that reached it.
        sent_seqs: For each server, the number of messages sent to it.
        values: The requested values of the step server, as they are now.
    """

    accepted: bool
    step: int
    counts: tuple[int, ...]
    sent_seqs: tuple[int, ...]
    values: dict[str, Leaves]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Values of variables, after that many `transactions` of their server."""

    transactions: int
    values: dict[str, Leaves]
