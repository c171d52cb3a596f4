"""Records: the frames around the bytes of each event in a file, which reveal damage and a torn end."""

from __future__ import annotations

import functools
import struct

import google_crc32c

from hookline.summary import wire

# Field 1 of Event, a double, and its key. Fields 1 and 2 (the step) are written out because every event has them.
_WALL_TIME = struct.Struct("<Bd")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


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

    References:
        The TFRecord format of TensorFlow's documentation.
    """
    return _header(len(data)) + data + masked_checksum(data)


def event_record(wall_time: float, step: int | None, field: bytes, payload: bytes) -> bytes:
    """Returns the record of an event, from what stands in `hookline.summary.event_file.Pending`."""
    if not field:
        return frame(payload)
    head = _WALL_TIME.pack(9, wall_time)
    if step is not None:
        head += b"\x10" + wire.varint(step)
    return frame(head + field + wire.varint(len(payload)) + payload)
