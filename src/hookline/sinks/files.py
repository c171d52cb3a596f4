"""Writes points to a file, one a line, as CSV or JSON lines; a resumed training drops the lines of later steps."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hookline import arguments, clock, errors, log
from hookline.checkpoint.saving import durable
from hookline.regular_file import UnreadableFileError, open_regular
from hookline.sinks.sink import Histogram, Point, RunInfo, Sink

_logger = log.get_logger(__name__)


class LineFile(Sink):
    """A file of lines; a subclass defines their format.

    Written lines survive the end of the process; from the next checkpoint on they also survive a crash of the machine.
    If the session resumes at an earlier step, a new file without the lines of later steps, and without an incomplete
    last line, replaces the old one.

    Args:
        path: The file. By default it is in the session's directory for summaries.

    Raises:
        InvalidArgumentError: From `open`: there is no path and no directory.
        FailedPreconditionError: From `open`: the file was not written by this class.
    """

    name = ""
    """The default name of the file."""
    header = b""
    """Its first line."""
    line_pattern: re.Pattern[bytes]
    """Matches the beginning of any other line: group "step" is the step; "again" marks lines that each start writes."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        given = arguments.check_path(type(self).__name__, "path", path, optional=True)
        self._given_path = None if given is None else os.path.abspath(given)
        self._path = ""
        self._file: int | None = None

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Yields the lines of points, with their newlines."""
        raise NotImplementedError

    def open(self, start: RunInfo) -> None:
        """Drops the lines of later steps, and opens the file."""
        if self._given_path is None and start.folder is None:
            raise errors.InvalidArgumentError.from_message(
                f"{type(self).__name__} requires a path, because the session has no directory for summaries. Give one: "
                f"{type(self).__name__}('run/{self.name}').",
            )
        self._path = self._given_path or os.path.join(start.folder or "", self.name)
        self._close_file()
        with suppress(FileNotFoundError):
            try:
                os.close(open_regular(self._path))
            except UnreadableFileError as error:
                raise errors.FailedPreconditionError.from_message(
                    f"{type(self).__name__} cannot write '{self._path}': {error}. Give another path, or remove it.",
                ) from error
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        if os.path.exists(self._path):
            self._drop_lines_after(start.step)
        self.append(b"")

    def write(self, points: Sequence[Point]) -> None:
        """Appends lines."""
        self.append("".join(self.lines(points)).encode())

    def append(self, data: bytes) -> None:
        """Appends whole lines, all or none.

        Raises:
            OSError: Nothing was appended.
        """
        if self._file is None:
            self._file = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        found = os.fstat(self._file)
        try:
            if not found.st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was being written", self._path)
            left = memoryview(data if found.st_size else self.header + data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, found.st_size)
            self._close_file()  # The next call opens the file again.
            raise

    def flush(self) -> None:
        """Syncs the file."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self, failed: bool) -> None:
        """Syncs and closes the file."""
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _drop_lines_after(self, step: int) -> None:
        """Drops the lines after a step, and an incomplete last line."""
        with open(self._path, "rb") as old:
            self._check(old.readline())
            old.seek(0)
            dropped = sum(not self._is_kept(line, step) for line in old)
            if not dropped:
                return
            old.seek(0)
            with durable.atomic_write(self._path) as new:
                new.writelines(line for line in old if self._is_kept(line, step))
        _logger.info(
            "%s resumes after step %d: dropped %d lines of later steps or incomplete lines from '%s'.",
            type(self).__name__,
            step,
            dropped,
            self._path,
        )

    def _check(self, first: bytes) -> None:
        is_own = first == self.header if self.header else self.line_pattern.match(first)
        if first.endswith(b"\n") and not is_own:
            raise errors.FailedPreconditionError.from_message(
                f"{type(self).__name__} did not write '{self._path}', which begins with {first[:60]!r}. Give another "
                f"path, or move that file.",
            )

    def _is_kept(self, line: bytes, step: int) -> bool:
        found = self.line_pattern.match(line)
        if not line.endswith(b"\n"):
            return False
        if found is None or not found["step"].isdigit():
            return True
        return int(found["step"]) < step + ("again" not in found.re.groupindex or found["again"] is None)


class Csv(LineFile):
    """Writes scalars to a CSV file with the columns `step`, `tag`, `value` and `time` (seconds since the epoch).

    NaN and infinities are `nan`, `inf` and `-inf`, which Python and NumPy read. Lines are as durable as in `JsonLines`,
    and a restart drops the same ones.

    Args:
        path: The file; `scalars.csv` in the session's directory for summaries by default.

    Raises:
        InvalidArgumentError: At the start of the session: there is no path and no directory for summaries.
        FailedPreconditionError: At the start of the session: the file was not written by this class.

    Example:
        >>> import hookline as hl, numpy as np, pathlib, tempfile
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / w}
        >>> loop = hl.train.Loop(train_step, np.float32(2), hl.data.from_arrays(np.ones(3), batch_size=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = loop.run(folder, logging=hl.train.LoggingOptions(sinks=[Csv()]), progress=False)
        ...     for line in pathlib.Path(folder, "scalars.csv").read_text().splitlines():
        ...         print(line.rpartition(",")[0])
        step,tag,value
        1,loss,0.5
    """

    name = "scalars.csv"
    header = b"step,tag,value,time\n"
    line_pattern = re.compile(rb"(?P<step>\d*),")

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Returns the rows of scalars."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for point in points:
            step = "" if point.step is None else point.step
            rows.writerow((step, " ".join(point.tag.splitlines()), point.value, f"{point.time:.6f}"))
        yield text.getvalue()


class JsonLines(LineFile):
    """Writes scalars, text, histograms and hyperparameters to a file with one JSON object a line.

    A scalar is `{"step": 100, "tag": "loss", "value": 0.5, "time": 1790000000.0}`. Other points have a `"kind"` too,
    "text" or "histogram", whose value is `{"least": ..., "limits": [...], "counts": [...]}`. Each start writes
    `{"step": 0, "hparams": {...}, "time": ...}`. JSON has no NaN and no infinity: they are the strings "NaN",
    "Infinity" and "-Infinity".

    Lines survive the end of the process; from the next checkpoint on they also survive a crash of the machine. If a
    training resumes at an earlier step, the lines of later steps are dropped, and so is an incomplete last line of a
    killed process. The file is replaced atomically.

    Args:
        path: The file; `points.jsonl` in the session's directory for summaries by default.

    Raises:
        InvalidArgumentError: At the start of the session: there is no path and no directory for summaries.
        FailedPreconditionError: At the start of the session: the file was not written by this class.

    Example:
        >>> import hookline as hl, json, numpy as np, pathlib, tempfile
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / w}
        >>> loop = hl.train.Loop(train_step, np.float32(0), hl.data.from_arrays(np.ones(3), batch_size=1))
        >>> logging = hl.train.LoggingOptions(sinks=[JsonLines()], hparams={"rate": 0.1})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = loop.run(folder, logging=logging, nan_check=None, progress=False)
        ...     for line in pathlib.Path(folder, "points.jsonl").read_text().splitlines():
        ...         print({name: value for name, value in json.loads(line).items() if name != "time"})
        {'step': 0, 'hparams': {'rate': 0.1}}
        {'step': 1, 'tag': 'loss', 'value': 'Infinity'}
    """

    takes = ("scalar", "text", "histogram", "hparams")
    name = "points.jsonl"
    line_pattern = re.compile(rb'\{"step": (?P<step>\d+|null), "(?:tag|(?P<again>hparams))":')

    def open(self, start: RunInfo) -> None:
        """Opens the file, and writes the hyperparameters."""
        super().open(start)
        if start.hparams:
            self.append(_json_line({"step": start.step, "hparams": start.hparams, "time": clock.time()}).encode())

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Returns the lines of points."""
        for point in points:
            found = {"step": point.step, "tag": point.tag, "value": point.value, "time": point.time}
            yield _json_line(found if point.kind == "scalar" else found | {"kind": point.kind})


def _json_line(found: Mapping[str, Any]) -> str:
    return json.dumps(_json_safe(found), allow_nan=False) + "\n"


def _json_safe(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Histogram):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _json_safe(item) for name, item in value.items()}
    return [_json_safe(item) for item in value] if isinstance(value, list | tuple) else value
