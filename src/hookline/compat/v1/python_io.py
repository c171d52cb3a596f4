"""`tf.python_io`: files of records, in the TFRecord format."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO, Any

from hookline.compat.v1._machinery.namespaces import made_in, offered
from hookline.errors import DataLossError, from_os_error
from hookline.summary.records import frame, masked_checksum

__all__ = ["TFRecordWriter", "tf_record_iterator"]

_LENGTH = struct.Struct("<Q")
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4


class TFRecordWriter:
    """Writes records to a file.

    Args:
        path: The file; it begins anew.

    References:
        `tf.python_io.TFRecordWriter`, without compression.
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        if options:
            raise ValueError(f"TFRecordWriter writes without compression, got options={options!r}.")
        try:
            self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise from_os_error(error, f"TFRecordWriter could not write {os.fspath(path)!r}") from error

    def write(self, record: bytes) -> None:
        """Appends a record."""
        self._file.write(frame(record))

    def flush(self) -> None:
        """Flushes the buffer to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """Yields the records of a file.

    References:
        `tf.python_io.tf_record_iterator`, without compression.
    """
    if options:
        raise ValueError(f"tf_record_iterator reads without compression, got options={options!r}.")
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise from_os_error(error, f"tf_record_iterator could not read {os.fspath(path)!r}") from error
    with file:
        yield from read_records(file)


def read_records(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the records of an open file.

    Raises:
        DataLossError: The file ends within a record, or a checksum is wrong.
    """
    while head := file.read(_LENGTH_BYTES + _CHECKSUM_BYTES):
        length = head[:_LENGTH_BYTES]
        if masked_checksum(length) != head[_LENGTH_BYTES:]:
            raise _damaged(file)
        (size,) = _LENGTH.unpack(length)
        record, checksum = file.read(size), file.read(_CHECKSUM_BYTES)
        if masked_checksum(record) != checksum:
            raise _damaged(file)
        yield record


def _damaged(file: IO[bytes]) -> DataLossError:
    name = getattr(file, "name", "the file")
    return DataLossError(None, None, f"{name!r} holds a damaged record, or ends within one, before byte {file.tell()}.")


_OFFERED = made_in(__name__, globals())
__getattr__, __dir__ = offered("tf.python_io", lambda: _OFFERED)
