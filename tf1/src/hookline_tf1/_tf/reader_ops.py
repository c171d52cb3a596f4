"""Readers of TF 1.x: `tf.TextLineReader().read(queue)` returns the next record of the files in a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from hookline.extend import read_records
from hookline_tf1._rules.host_strings import as_word, encoded
from hookline_tf1.data import Dataset
from hookline_tf1.data._elements import STRING, Component
from hookline_tf1.data._mapping import Pass
from hookline_tf1.data._readers import fixed_length, lines, opened
from hookline_tf1.train._input_producers import Queue

Records = Iterator[tuple[str, bytes]]
_TEXT = Component(STRING, ())


class ReaderBase:
    """Reads records from the files of a queue.

    Args:
        records: Returns pairs from an open file: the end of a record's key, and the record.
        compression: `"GZIP"`, `"ZLIB"`, or nothing.

    References:
        `tf.ReaderBase`. Readers of the same kind share a queue, as there.
    """

    def __init__(self, records: Callable[[IO[bytes]], Records], compression: str | None = None, *how: Any) -> None:
        self._records, self._compression = records, compression
        self._kind = (type(self), compression, *how)

    def read(self, queue: Queue, name: str | None = None) -> tuple[Any, Any]:
        """Returns tensors of the next record's key and content in each run."""
        if not isinstance(queue, Queue):
            raise TypeError(
                f"{type(self).__name__}.read requires a queue of tf.train.string_input_producer, got {queue!r}."
            )

        def make(run: Pass) -> Iterator[Any]:
            for path in queue.elements.make(run):
                yield from self._of_file(as_word(path))

        dataset = Dataset(make, (_TEXT, _TEXT), queue.elements.inputs)
        key, value = queue.next_of(self._kind, dataset, name or "ReaderReadV2")
        return key, value

    def _of_file(self, path: str) -> Iterator[Any]:
        with opened(path, self._compression) as file:
            for end, record in self._records(file):
                yield encoded(path + end), encoded(record)


class TextLineReader(ReaderBase):
    """Reads lines, without line ends. The key is the path and the number of the line, from 1.

    Args:
        skip_header_lines: The number of lines to skip at the start of each file.
        name: Is not used.

    References:
        `tf.TextLineReader`.
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        def records(file: IO[bytes]) -> Records:
            for number, line in enumerate(lines(file), 1):
                if number > (skip_header_lines or 0):
                    yield f":{number}", line

        super().__init__(records, None, skip_header_lines)


class FixedLengthRecordReader(ReaderBase):
    """Reads records of a fixed length. The key is the path and the number of the record, from 0.

    References:
        `tf.FixedLengthRecordReader`. An incomplete last record is dropped.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        if hop_bytes and hop_bytes != record_bytes:
            raise NotImplementedError("FixedLengthRecordReader reads records side by side: leave hop_bytes out.")
        if encoding not in (None, "", "ZLIB"):
            raise ValueError(f"FixedLengthRecordReader takes 'ZLIB' as encoding, or none, got {encoding!r}.")
        cut = fixed_length(record_bytes, header_bytes, footer_bytes)
        how = (record_bytes, header_bytes, footer_bytes)
        super().__init__(lambda file: ((f":{n}", record) for n, record in enumerate(cut(file))), encoding, *how)


class TFRecordReader(ReaderBase):
    """Reads the records of TFRecord files. The key is the path and the record's offset.

    References:
        `tf.TFRecordReader`, without options.
    """

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        if options:
            raise ValueError(f"TFRecordReader reads without compression, got options={options!r}.")

        def records(file: IO[bytes]) -> Records:
            start = 0
            for record in read_records(file):
                yield f":{start}", record
                start = file.tell()

        super().__init__(records)


class WholeFileReader(ReaderBase):
    """Reads entire files. The key is the path.

    References:
        `tf.WholeFileReader`.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(lambda file: iter([("", file.read())]))


class IdentityReader(ReaderBase):
    """Returns each element of the queue as key and as record.

    References:
        `tf.IdentityReader`.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(lambda file: iter(()))

    def _of_file(self, path: str) -> Iterator[Any]:
        yield np.asarray(path.encode(), dtype=object), np.asarray(path.encode(), dtype=object)


PUBLIC = [
    "FixedLengthRecordReader",
    "IdentityReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
]
