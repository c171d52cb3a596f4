"""Csv: scalars as a CSV file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

from hookline.sinks.line_file import LineFile
from hookline.sinks.sink import Point


class Csv(LineFile):
    """Writes scalars to a CSV file with the columns `step`, `tag`, `value` and `time` (seconds since the epoch).

    NaN and infinities are `nan`, `inf` and `-inf`, which Python and NumPy read. Lines are as durable as those of
    `JsonLines`, and a restart treats them alike.

    Args:
        path: The file; `scalars.csv` in the session's directory for summaries by default.

    Raises:
        InvalidArgumentError: At the start of the session: there is no path and no directory for summaries.
        FailedPreconditionError: At the start of the session: the file was not written by this class.

    Example:
        >>> import hookline as hl, numpy as np, pathlib, tempfile
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / w}
        >>> loop = hl.train.Loop(train_step, np.float32(2), hl.data.arrays(np.ones(3), batch_size=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = loop.run(folder, logging=hl.train.LoggingOptions(sinks=[Csv()]), progress=False)
        ...     for line in pathlib.Path(folder, "scalars.csv").read_text().splitlines():
        ...         print(line.rpartition(",")[0])
        step,tag,value
        1,loss,0.5
    """

    name = "scalars.csv"
    header = b"step,tag,value,time\n"
    begins_with = re.compile(rb"(?P<step>\d*),")

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Returns the rows of scalars."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for point in points:
            step = "" if point.step is None else point.step
            rows.writerow((step, " ".join(point.tag.splitlines()), point.value, f"{point.time:.6f}"))
        yield text.getvalue()
