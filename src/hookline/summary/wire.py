"""The part of the wire format of protocol buffers that events and scalars need.

Scalars and events are written by hand because they are many and tiny. A message object for each would cost several
times as much, and importing the message classes takes longer than importing this whole package. Rare or large messages
(histograms, text, graphs) use the message classes in `hookline.summary.protos`.
"""

from __future__ import annotations

_UINT64 = (1 << 64) - 1
_ONE_GROUP = [bytes((number,)) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Returns a 64-bit integer in base 128, least significant group first; a negative one as its two's complement."""
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
    """Returns the key of a field; type 0 is a varint, 1 means 8 bytes, 2 a length and bytes, 5 means 4 bytes."""
    return varint(field << 3 | wire_type)


def length_delimited(field: int, payload: bytes) -> bytes:
    """Returns a field that holds bytes, text or a message."""
    return key(field, 2) + varint(len(payload)) + payload
