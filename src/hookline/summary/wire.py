"""The wire format of protocol buffers, as far as events and scalars need it.

Scalars and events are written by hand because they are many and tiny: building a message object for each costs several
times the bytes it yields, and importing the message classes costs more than importing this whole package. Whatever is
rare or large (histograms, text, graphs) is built from the message classes in `hookline.summary.protos`.
"""

from __future__ import annotations

_UINT64 = (1 << 64) - 1
_ONE_GROUP = [bytes((number,)) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Returns a 64-bit integer in base 128, least significant group first; a negative one as its two's complement.

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
    """Returns the key of a field: its number and how its value is written.

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
