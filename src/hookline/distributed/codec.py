"""The encoding of messages in MessagePack: decoding one runs no code."""

from __future__ import annotations

import builtins
from typing import Any

import jax
import numpy as np

from hookline import errors
from hookline.distributed.protocol import CodecError, Committed, EncodedArray, Pulled, Structure, checked_dtype
from hookline.distributed.server.server_state import Apply, Put

_RECORDS = {record.__name__: record for record in (Apply, Committed, EncodedArray, Pulled, Put)}


def encode(message: Any) -> tuple[bytes, list[np.ndarray]]:
    """Encodes a message as a body and a list of arrays.

    A message may contain tuples, dictionaries, strings, bytes, numbers, arrays, exceptions, the records of the
    protocol, and tree structures of tuples, lists and dictionaries.

    Raises:
        CodecError: The message contains an object of another type.

    Example:
        >>> body, arrays = encode(("pull", {"v": [np.arange(3)]}))
        >>> len(body), arrays
        (25, [array([0, 1, 2])])
    """
    import msgpack

    arrays: list[np.ndarray] = []

    # Types that MessagePack lacks are encoded as a dictionary with the key None: {None: (kind, *parts)}.
    def describe(value: Any) -> dict[None, tuple[Any, ...]]:
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {None: ("array", value.dtype.str, value.shape)}
        if _RECORDS.get(kind) is type(value):
            return {None: (kind, *(getattr(value, name) for name in value.__slots__))}
        if isinstance(value, Structure):
            return {None: ("tree", value.treedef.serialize_using_proto())}
        if isinstance(value, Exception):
            return {None: ("error", *_encode_error(value))}
        raise CodecError(f"A {kind} is not plain data.")

    try:
        body: bytes = msgpack.packb(message, default=describe)  # type: ignore[assignment]
    except (ValueError, OverflowError) as error:
        raise CodecError(f"A message is not plain data: {error}") from error
    return body, arrays


def decode(body: bytes) -> tuple[Any, list[np.ndarray]]:
    """Decodes a message; returns it, and its arrays, which the caller has to fill. Lists become tuples.

    Raises:
        CodecError: `encode` has not made these bytes.

    Example:
        >>> (method, values), arrays = decode(encode(("pull", {"v": [np.arange(3)]}))[0])
        >>> values["v"][0] is arrays[0], arrays[0].shape
        (True, (3,))
    """
    import msgpack

    arrays: list[np.ndarray] = []

    def build(found: dict[Any, Any]) -> Any:
        if None not in found:
            return found
        kind, *parts = found[None]
        if kind == "array":
            dtype, shape = parts
            arrays.append(np.empty(shape, checked_dtype(dtype)))
            return arrays[-1]
        if kind == "tree":
            registry = jax.tree_util.default_registry
            return Structure(jax.tree_util.PyTreeDef.deserialize_using_proto(registry, *parts))
        return _decode_error(*parts) if kind == "error" else _RECORDS[kind](*parts)

    try:
        return msgpack.unpackb(body, object_hook=build, use_list=False, strict_map_key=False), arrays
    except Exception as error:
        raise CodecError(f"A message cannot be read: {error!r}") from error


# Exceptions ---------------------------------------------------------------------------------------------------------


def _encode_error(error: Exception) -> tuple[str, tuple[str | int | None, ...], list[str]]:
    """Returns the name, arguments and notes of an exception; its class, or the nearest base class with a known name."""
    known = next(cls for cls in type(error).__mro__ if _exception_class(cls.__name__) is cls)
    args = error.args
    if known is not type(error):
        args = (f"{type(error).__name__}: {error}",)
    elif isinstance(error, errors.OpError) or not all(isinstance(arg, str | int | None) for arg in args):
        args = (str(error),)
    return known.__name__, args, getattr(error, "__notes__", [])


def _exception_class(name: str) -> Any:
    return getattr(errors, name, None) or getattr(builtins, name, None)


def _decode_error(name: str, args: tuple[Any, ...], notes: tuple[str, ...]) -> Exception:
    cls = _exception_class(name)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        raise CodecError(f"{name!r} is not a known exception class.")
    try:
        error = cls(None, None, *args) if issubclass(cls, errors.OpError) else cls(*args)
    except TypeError:
        error = RuntimeError(f"{name}: {', '.join(map(str, args))}")
    for note in notes:
        error.add_note(note)
    return error
