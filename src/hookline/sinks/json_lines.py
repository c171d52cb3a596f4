"""JsonLines: scalars, text, histograms and hyperparameters as JSON, one a line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookline import clock
from hookline.sinks.line_file import LineFile
from hookline.sinks.sink import Histogram, Point, Start


class JsonLines(LineFile):
    """Writes scalars, text, histograms and hyperparameters to a file with one JSON object a line.

    A scalar is `{"step": 100, "tag": "loss", "value": 0.5, "time": 1790000000.0}`. Other points have a `"kind"` too,
    "text" or "histogram", whose value is `{"least": ..., "limits": [...], "counts": [...]}`. Each start writes
    `{"step": 0, "hparams": {...}, "time": ...}`. JSON has no NaN and no infinity: they are the strings "NaN",
    "Infinity" and "-Infinity".

    Lines survive the end of the process, and from the next checkpoint on a crash of the machine. If a training resumes
    at an earlier step, the lines of later steps are dropped, and so is an incomplete last line of a killed process.
    Readers see the old file or the new one.

    Args:
        path: The file; `points.jsonl` in the session's directory for summaries by default.

    Raises:
        InvalidArgumentError: At the start of the session: there is no path and no directory for summaries.
        FailedPreconditionError: At the start of the session: the file was not written by this class.

    Example:
        >>> import hookline as hl, json, numpy as np, pathlib, tempfile
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / w}
        >>> loop = hl.train.Loop(train_step, np.float32(0), hl.data.arrays(np.ones(3), batch_size=1))
        >>> logging = hl.train.LoggingOptions(sinks=[JsonLines()], hparams={"rate": 0.1})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = loop.run(folder, logging=logging, watch=None, progress=False)
        ...     for line in pathlib.Path(folder, "points.jsonl").read_text().splitlines():
        ...         print({name: value for name, value in json.loads(line).items() if name != "time"})
        {'step': 0, 'hparams': {'rate': 0.1}}
        {'step': 1, 'tag': 'loss', 'value': 'Infinity'}
    """

    takes = ("scalar", "text", "histogram", "hparams")
    name = "points.jsonl"
    begins_with = re.compile(rb'\{"step": (?P<step>\d+|null), "(?:tag|(?P<again>hparams))":')

    def open(self, start: Start) -> None:
        """Opens the file, and writes the hyperparameters."""
        super().open(start)
        if start.hparams:
            self.append(_line({"step": start.step, "hparams": start.hparams, "time": clock.time()}).encode())

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Returns the lines of points."""
        for point in points:
            found = {"step": point.step, "tag": point.tag, "value": point.value, "time": point.time}
            yield _line(found if point.kind == "scalar" else found | {"kind": point.kind})


def _line(found: Mapping[str, Any]) -> str:
    return json.dumps(_valid(found), allow_nan=False) + "\n"


def _valid(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Histogram):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _valid(item) for name, item in value.items()}
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value
