"""`tf.python_io`: reads and writes TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from hookline.extend import frame, from_os_error, read_records
from hookline_tf1._machinery.namespaces import made_in, offered

__all__ = ["TFRecordWriter", "tf_record_iterator"]


class TFRecordWriter:
    """Writes records to a file.

    Args:
        path: The file; an existing one is overwritten.

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


_OFFERED = made_in(__name__, globals())
__getattr__, __dir__ = offered("tf.python_io", lambda: _OFFERED)
