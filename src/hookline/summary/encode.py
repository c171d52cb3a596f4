"""Values and graphs as the serialized messages that TensorBoard reads."""

from __future__ import annotations

import functools
import math
import struct
from typing import Any

import numpy as np

from hookline import errors
from hookline.graph import Graph
from hookline.summary import records

_FLOAT = struct.Struct("<f")


def scalar(tag: str, value: Any) -> bytes:
    """Returns the serialized `Summary` of one number, of any real dtype.

    NaN and infinities are written unchanged, numbers beyond 32-bit floats as infinities.

    Raises:
        InvalidArgumentError: `value` is not one real number.
    """
    try:
        number = float(value) if isinstance(value, int | float) else _real_number(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidArgumentError(
            None,
            None,
            f"Summary {tag!r} requires one number, got {_described(value)}; reduce it first (a mean, a norm) or write "
            f"a histogram.",
        ) from error
    try:
        return _before_number(tag) + _FLOAT.pack(number)
    except OverflowError:
        return _before_number(tag) + _FLOAT.pack(math.copysign(math.inf, number))


@functools.lru_cache(maxsize=4096)
def _before_number(tag: str) -> bytes:
    """Returns a scalar's `Summary` without its last four bytes, the number: it is the same at every step."""
    head = records.length_delimited(1, tag.encode()) + records.key(2, 5)
    return records.key(1, 2) + records.varint(len(head) + _FLOAT.size) + head


def _real_number(value: Any) -> float:
    array = np.asarray(value)
    if array.shape or array.dtype.kind in "cOSUMm":
        raise TypeError(array.dtype)
    return float(array)


def _described(value: Any) -> str:
    try:
        array = np.asarray(value)
    except Exception:
        return f"a value of type {type(value).__name__}"
    return repr(value) if array.dtype == object else f"a {array.dtype} array of shape {array.shape}"


def text(tag: str, value: Any) -> bytes:
    """Returns the serialized `Summary` of text, which TensorBoard shows as Markdown.

    Raises:
        InvalidArgumentError: `value` is not a string, bytes in UTF-8, or an array or nested list of them (a table).
    """
    from hookline.summary.protos import Summary

    strings = np.asarray(value, dtype=object)
    if not all(isinstance(item, str | bytes) for item in strings.flat):
        raise errors.InvalidArgumentError(None, None, f"Summary {tag!r} requires strings, got {value!r}.")
    summary = Summary()
    message = summary.value.add(tag=tag)
    message.metadata.plugin_data.plugin_name = "text"
    message.tensor.dtype = 7  # DT_STRING
    for length in strings.shape:
        message.tensor.tensor_shape.dim.add(size=length)
    message.tensor.string_val.extend(item.encode() if isinstance(item, str) else item for item in strings.flat)
    return summary.SerializeToString()


def graph(described: Graph) -> bytes:
    """Returns the serialized `GraphDef` of a graph: names, types, inputs and control inputs of its operations."""
    from hookline.summary.protos import GraphDef

    message = GraphDef()
    message.versions.producer = 22
    for operation in described.get_operations():
        node = message.node.add(name=operation.name, op=operation.type)
        node.input.extend(dict.fromkeys(tensor.op.name for tensor in operation.inputs))
        node.input.extend(f"^{control.name}" for control in operation.control_inputs)
    return message.SerializeToString()
