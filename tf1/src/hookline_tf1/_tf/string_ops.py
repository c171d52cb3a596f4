"""String functions: `tf.string_to_number`, `tf.string_join`, `tf.as_string`, and the functions of `tf.strings`.

They run on the host, so the device can use a number parsed from a string only if the string is fed, a constant, or read
from a dataset.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hookline.errors import InvalidArgumentError
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._machinery.number_text import formatted, number
from hookline_tf1._rules.host_strings import STRING, OnHost, broadcast, known_shape


def each(fn: Callable[..., Any], name: str, *inputs: Any, dtype: Any = STRING) -> Any:
    """Applies a function to each string, and to the elements at its index in other inputs."""
    tensors = [convert_to_tensor(value) for value in inputs]
    kind = object if dtype == STRING else dtype

    def computed(arrays: Any) -> Any:
        inputs = np.broadcast_arrays(*arrays)
        found = np.empty(inputs[0].shape, kind)
        for index in np.ndindex(found.shape):
            found[index] = fn(*(array[index] for array in inputs))
        return found

    shape = broadcast([known_shape(tensor) for tensor in tensors])
    return OnHost(computed, name, {"arrays": tensors}, dtype, shape).output


def string_to_number(string_tensor: Any, out_type: Any = dtypes.float32, name: str | None = None) -> Any:
    """`tf.string_to_number`."""
    wanted = dtypes.as_dtype(out_type)

    def read(text: bytes) -> Any:
        try:
            return number(text, wanted)
        except ValueError as error:
            what = f"StringToNumberOp could not correctly convert string: {text.decode('utf-8', 'replace')} ({error})"
            raise InvalidArgumentError.from_message(what) from None

    return each(read, name or "StringToNumber", string_tensor, dtype=dtypes.canonical(wanted))


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Any:
    """`tf.as_string`."""
    return each(lambda value: formatted(value, precision, scientific, shortest, width, fill), name or "AsString", input)


def string_join(inputs: Any, separator: str = "", name: str | None = None) -> Any:
    """`tf.string_join`: concatenates the strings at the same index of several tensors."""
    between = separator.encode()
    return each(lambda *texts: between.join(texts), name or "StringJoin", *inputs)


def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Any:
    """`tf.reduce_join`: joins strings along dimensions, in the given order; by default along all, the last first."""
    tensor, axes = convert_to_tensor(inputs), reduction_indices if axis is None else axis
    keep, between = bool(keepdims or keep_dims), separator.encode()
    known = known_shape(tensor)

    def order(rank: int) -> list[int]:
        listed = reversed(range(rank)) if axes is None else np.atleast_1d(np.asarray(axes, int)).tolist()
        return [dim % rank for dim in listed]

    def joined(texts: Any) -> Any:
        listed = order(texts.ndim)
        last = np.moveaxis(texts, listed[::-1], range(texts.ndim - len(listed), texts.ndim)) if listed else texts
        left = last.shape[: texts.ndim - len(listed)]
        found = np.empty(left, object)
        for index in np.ndindex(left):
            found[index] = between.join(np.ravel(last[index]))
        return np.expand_dims(found, tuple(listed)) if keep else found

    shape = None
    if known is not None:
        gone = order(len(known))
        shape = [1 if i in gone else dim for i, dim in enumerate(known) if keep or i not in gone]
    return OnHost(joined, name or "ReduceJoin", {"texts": tensor}, STRING, shape).output


def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Any:
    """`tf.strings.length`."""
    _check_unit("length", unit)
    return each(lambda text: len(_counted(text, unit)), name or "StringLength", input, dtype=np.dtype(np.int32))


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Any:
    """`tf.substr`."""
    _check_unit("substr", unit)

    def cut(text: bytes, start: Any, length: Any) -> bytes:
        whole = _counted(text, unit)
        size = whole.__len__()
        if not -size <= start <= size:
            raise InvalidArgumentError.from_message(f"pos {start} out of range for string {text!r}")
        begin = int(start) % size if start < 0 else int(start)
        part = whole[begin : begin + int(length)]
        return part if isinstance(part, bytes) else part.encode()

    return each(cut, name or "Substr", input, pos, len)


def _counted(text: bytes, unit: str) -> bytes | str:
    return text if unit == "BYTE" else text.decode()


def _check_unit(who: str, unit: str) -> None:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"tf.strings.{who}: unit is 'BYTE' or 'UTF8_CHAR', got {unit!r}.")


def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """`tf.strings.lower`: ASCII letters only, or all letters with `encoding="utf-8"`."""
    return each(lambda text: text.decode().lower().encode() if encoding else text.lower(), name or "Lower", input)


def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """`tf.strings.upper`: ASCII letters only, or all letters with `encoding="utf-8"`."""
    return each(lambda text: text.decode().upper().encode() if encoding else text.upper(), name or "Upper", input)


def string_strip(input: Any, name: str | None = None) -> Any:
    """`tf.string_strip`."""
    return each(lambda text: text.strip(), name or "StringStrip", input)


def regex_replace(input: Any, pattern: str, rewrite: str, replace_global: bool = True, name: str | None = None) -> Any:
    r"""`tf.regex_replace`: `\1` in `rewrite` is a group of the pattern. Patterns are Python's (`re`)."""
    found, count = re.compile(_bytes(pattern)), 0 if replace_global else 1
    return each(lambda text: found.sub(_bytes(rewrite), text, count=count), name or "RegexReplace", input)


def regex_full_match(input: Any, pattern: str, name: str | None = None) -> Any:
    """`tf.strings.regex_full_match`, with patterns of Python's `re`."""
    found = re.compile(_bytes(pattern))
    return each(lambda text: bool(found.fullmatch(text)), name or "RegexFullMatch", input, dtype=np.dtype(bool))


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Any:
    """`tf.encode_base64`: with the URL-safe alphabet."""

    def encode(text: bytes) -> bytes:
        found = base64.urlsafe_b64encode(text)
        return found if pad else found.rstrip(b"=")

    return each(encode, name or "EncodeBase64", input)


def decode_base64(input: Any, name: str | None = None) -> Any:
    """`tf.decode_base64`."""
    return each(lambda text: base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)), name or "DecodeBase64", input)


def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Any:
    """`tf.decode_raw`: converts the bytes of strings of equal length to numbers."""
    tensor = convert_to_tensor(bytes if input_bytes is None else input_bytes)
    kind = dtypes.as_dtype(out_type).dtype
    stored, held = kind.newbyteorder("<" if little_endian else ">"), dtypes.canonical(out_type)

    def decoded(texts: Any) -> Any:
        lengths = {text.__len__() for text in np.ravel(texts)}
        if len(lengths) > 1 or any(length % kind.itemsize for length in lengths):
            what = (
                f"DecodeRaw requires strings of one length, a multiple of {kind.itemsize} bytes, got {sorted(lengths)}."
            )
            raise InvalidArgumentError.from_message(what)
        numbers = np.frombuffer(b"".join(np.ravel(texts)), stored)
        return numbers.astype(held).reshape(*np.shape(texts), -1) if numbers.size else np.empty((*texts.shape, 0), held)

    shape = known_shape(tensor)
    open_shape = None if shape is None else (*shape, None)
    return OnHost(decoded, name or "DecodeRaw", {"texts": tensor}, held, open_shape).output


PUBLIC = {
    "as_string": as_string,
    "decode_base64": decode_base64,
    "decode_raw": decode_raw,
    "encode_base64": encode_base64,
    "reduce_join": reduce_join,
    "regex_replace": regex_replace,
    "string_join": string_join,
    "string_strip": string_strip,
    "string_to_number": string_to_number,
    "substr": substr,
}
