"""Datasets that read files."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from hookline.extend import from_os_error, read_records
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._rules.host_strings import as_word
from hookline_tf1.data import _elements
from hookline_tf1.data._dataset import Dataset
from hookline_tf1.data._elements import STRING, Component
from hookline_tf1.data._mapping import Pass

Records = Callable[[IO[bytes]], Iterator[bytes]]


class _FileDataset(Dataset):
    """The records of files, as strings.

    Args:
        filenames: A path, paths, a tensor of them, or a dataset.
        records: Returns the records of an open file.
        compression_type: `"GZIP"`, `"ZLIB"`, or nothing.
    """

    def __init__(self, filenames: Any, records: Records, compression_type: Any) -> None:
        paths = filenames if isinstance(filenames, Dataset) else _elements.arranged(filenames)

        def make(run: Pass) -> Iterator[Any]:
            found = paths.make(run) if isinstance(paths, Dataset) else np.atleast_1d(run.arrays(paths))
            for path in found:
                with opened(as_word(path), compression_type) as file:
                    yield from map(_elements.as_array, records(file))

        inputs = paths.inputs if isinstance(paths, Dataset) else _elements.tensors_in(paths)
        super().__init__(make, Component(STRING, ()), inputs)


class TextLineDataset(_FileDataset):
    """The lines of text files, without line ends.

    References:
        `tf.data.TextLineDataset`.
    """

    def __init__(self, filenames: Any, compression_type: Any = None, buffer_size: Any = None) -> None:
        ignored("tf.data.TextLineDataset", buffer_size=buffer_size)
        super().__init__(filenames, lines, compression_type)


class TFRecordDataset(_FileDataset):
    """The records of TFRecord files.

    References:
        `tf.data.TFRecordDataset`.
    """

    def __init__(
        self, filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
    ) -> None:
        ignored("tf.data.TFRecordDataset", buffer_size=buffer_size, num_parallel_reads=num_parallel_reads)
        super().__init__(filenames, read_records, compression_type)


class FixedLengthRecordDataset(_FileDataset):
    """The fixed-length records of files.

    References:
        `tf.data.FixedLengthRecordDataset`.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int = 0,
        footer_bytes: int = 0,
        buffer_size: Any = None,
        compression_type: Any = None,
    ) -> None:
        ignored("tf.data.FixedLengthRecordDataset", buffer_size=buffer_size)
        super().__init__(filenames, fixed_length(record_bytes, header_bytes, footer_bytes), compression_type)


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of an open file, without line ends."""
    return (line.rstrip(b"\r\n") for line in file)


def fixed_length(record_bytes: int, header_bytes: int | None, footer_bytes: int | None) -> Records:
    """Returns a reader of an open file's fixed-length records, between header and footer."""

    def records(file: IO[bytes]) -> Iterator[bytes]:
        content = file.read()
        end = len(content) - (footer_bytes or 0)
        for start in range(header_bytes or 0, end - record_bytes + 1, record_bytes):
            yield content[start : start + record_bytes]

    return records


def opened(path: str, compression: Any) -> Any:
    """Opens a file for reading, and decompresses it if requested."""
    try:
        if compression in ("GZIP", b"GZIP"):
            return gzip.open(path, "rb")
        file = open(path, "rb")  # noqa: SIM115 - closed by the caller
    except OSError as error:
        raise from_os_error(error, f"tf.data could not read {path!r}") from error
    if compression in ("ZLIB", b"ZLIB"):
        with file:
            return io.BytesIO(zlib.decompress(file.read()))
    return file
