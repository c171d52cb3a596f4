"""Encodes events, and frames them as records with checksums, which reveal damage and a torn end of a file.

Scalars and events are encoded here directly, because they are many and tiny: a message object for each would take
several times as long. Rare or large messages (histograms, text, graphs) use the classes in `hookline.summary.protos`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import IO

import google_crc32c

from hookline.errors import DataLossError

# The key and the value of field 1 of Event, a double. Fields 1 and 2 (the step) are encoded here: all events have them.
_WALL_TIME = struct.Struct("<Bd")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_AT_ONCE_BYTES = 16 * 2**20
_LAST_BYTES = 4096
_UINT64 = (1 << 64) - 1
_ONE_GROUP = [bytes((number,)) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Encodes a 64-bit integer in base 128, least significant group first; a negative one as its two's complement."""
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
    """Encodes a field that holds bytes, text or a message."""
    return key(field, 2) + varint(len(payload)) + payload


def masked_checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of `data`, rotated and shifted by a constant, as 4 bytes.

    The mask is part of the format. Without it, checksums of bytes that contain checksums would be weak.
    """
    checksum = google_crc32c.value(data)
    return _CHECKSUM.pack(((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=256)
def _header(length: int) -> bytes:
    # Scalars of one run have few different lengths, so nearly every header was made before.
    packed = _LENGTH.pack(length)
    return packed + masked_checksum(packed)


def frame(data: bytes) -> bytes:
    """Returns the record that holds `data`: its length, the length's checksum, `data`, the checksum of `data`.

    Example:
        >>> len(frame(b"abc"))
        19

    References:
        The TFRecord format of TensorFlow's documentation.
    """
    return _header(len(data)) + data + masked_checksum(data)


def read_records(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the data of the records of an open file.

    Raises:
        DataLossError: The file ends within a record, or a checksum is wrong.

    Example:
        >>> import io
        >>> list(read_records(io.BytesIO(frame(b"abc") + frame(b"de"))))
        [b'abc', b'de']
    """
    while head := file.read(_LENGTH.size + _CHECKSUM.size):
        length = head[: _LENGTH.size]
        if masked_checksum(length) != head[_LENGTH.size :]:
            raise _damaged(file)
        data = _exactly(file, *_LENGTH.unpack(length))
        if masked_checksum(data) != file.read(_CHECKSUM.size):
            raise _damaged(file)
        yield data


def read_last_record(file: IO[bytes]) -> bytes | None:
    """Returns the data of the last record of an open file, if the file ends with it and it is short; else None.

    It reads only the end of the file: a record begins where a length, with its checksum, reaches to the end.

    Example:
        >>> import io
        >>> read_last_record(io.BytesIO(frame(b"abc") + frame(b"de")))
        b'de'
    """
    file.seek(-min(file.seek(0, 2), _LAST_BYTES), 2)
    end, frame_bytes = file.read(), len(frame(b""))
    for begin in range(len(end) - frame_bytes, -1, -1):
        data = end[begin + frame_bytes - _CHECKSUM.size : -_CHECKSUM.size]
        if end.startswith(_LENGTH.pack(len(data)), begin) and end[begin:] == frame(data):
            return data
    return None


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Reads that many bytes, or up to the end. A damaged number takes no more memory than the file has bytes."""
    parts = []
    while size and (part := file.read(min(size, _AT_ONCE_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _damaged(file: IO[bytes]) -> DataLossError:
    name = getattr(file, "name", "the file")
    return DataLossError.from_message(
        f"{name!r} holds a damaged record, or ends within one, before byte {file.tell()}."
    )


def event_record(wall_time: float, step: int | None, field: bytes, payload: bytes) -> bytes:
    """Returns the record of an event; the arguments are the items of `hookline.summary.event_file.PendingEvent`."""
    if not field:
        return frame(payload)
    head = _WALL_TIME.pack(9, wall_time)
    if step is not None:
        head += b"\x10" + varint(step)
    return frame(head + field + varint(len(payload)) + payload)
