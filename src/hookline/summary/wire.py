"""The part of the wire format of protocol buffers that events and scalars need.

Scalars and events are written by hand because they are many and tiny. A message object for each would cost several
times as much, and importing the message classes takes longer than importing this whole package. Rare or large messages
(histograms, text, graphs) use the message classes in `hookline.summary.protos`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_UINT64 = (1 << 64) - 1
_ONE_GROUP = [bytes((number,)) for number in range(0x80)]
_FIXED = {1: 8, 5: 4}


def varint(number: int) -> bytes:
    """Returns a 64-bit integer in base 128, least significant group first; a negative integer as its two's complement.

    Example:
        >>> varint(300).hex()
        'ac02'
    """
    if 0 <= number < 0x80:
        return _ONE_GROUP[number]
    number &= _UINT64
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def key(field: int, wire_type: int) -> bytes:
    """Returns the key of a field: its number and the type of its encoding.

    Args:
        field: Number in the message.
        wire_type: 0 for a varint, 1 for 8 bytes, 2 for a length and bytes, 5 for 4 bytes.

    Example:
        >>> key(5, 2)
        b'*'
    """
    return varint(field << 3 | wire_type)


def length_delimited(field: int, payload: bytes) -> bytes:
    """Returns a field that holds bytes, text or a message.

    Example:
        >>> length_delimited(1, b"abc").hex()
        '0a03616263'
    """
    return key(field, 2) + varint(len(payload)) + payload


class Field(NamedTuple):
    """The position of a field in a message.

    Attributes:
        number: The number of the field.
        begin: Where its key begins.
        value: Where its value begins; for bytes, text and messages after the length.
        end: Where the next field begins.
    """

    number: int
    begin: int
    value: int
    end: int


def fields(message: bytes) -> Iterator[Field]:
    """Yields the fields of a serialized message, in their order.

    Raises:
        ValueError: It is not a message.

    Example:
        >>> [field for field in fields(bytes.fromhex("08052a0161"))]
        [Field(number=1, begin=0, value=1, end=2), Field(number=5, begin=2, value=4, end=5)]
    """
    end = 0
    while end < len(message):
        begin = end
        tag, value = _read_varint(message, begin)
        wire_type = tag & 7
        if wire_type == 0:
            end = _read_varint(message, value)[1]
        elif wire_type == 2:
            length, value = _read_varint(message, value)
            end = value + length
        elif wire_type in _FIXED:
            end = value + _FIXED[wire_type]
        else:
            raise ValueError(f"No serialized message: there is no wire type {wire_type}.")
        if end > len(message):
            raise ValueError("No serialized message: it ends within a field.")
        yield Field(tag >> 3, begin, value, end)


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Returns a number and the position where it ends."""
    number = 0
    for shift, group in enumerate(message[place : place + 10]):
        number |= (group & 0x7F) << 7 * shift
        if group < 0x80:
            return number, place + shift + 1
    raise ValueError("No serialized message: it ends within a number.")
