"""Sink: a place to which the summaries and hyperparameters of a run go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

KINDS = ("scalar", "text", "image", "audio", "histogram", "hparams")
"""What a sink may take."""


class Point(NamedTuple):
    """One value of a summary.

    Attributes:
        kind: "scalar", "text", "image", "audio" or "histogram".
        tag: Its name. That of an evaluation begins with the evaluation's name: `eval/loss`.
        step: The global step; None where it was written without one.
        time: Seconds since the epoch.
        value: A float for a scalar, text for a text; the bytes of a PNG for an image, of a WAV for audio; a
            `Histogram`. A scalar is the shortest number that is the same as 32-bit float, which is how summaries hold
            it.
    """

    kind: str
    tag: str
    step: int | None
    time: float
    value: Any


class Histogram(NamedTuple):
    """Counts of values in buckets.

    Attributes:
        least: The smallest value.
        limits: The upper limit of each bucket, ascending.
        counts: How many values are in each.
    """

    least: float
    limits: list[float]
    counts: list[float]


class Start(NamedTuple):
    """How a session begins, or goes on after a recovery.

    Attributes:
        folder: The directory for summaries; None where the session has none.
        step: The global step. What a lost run has written of later steps is done anew.
        hparams: Hyperparameters by name: numbers, flags, text, None, and lists of them. Nested names have slashes.
        is_new: Whether the training begins: nothing was restored.
    """

    folder: str | None
    step: int
    hparams: dict[str, Any]
    is_new: bool


class Sink:
    """Takes the summaries that the hooks of a session write. A subclass defines `write`, and what else it needs.

    A session calls `open` before its first step, on its own thread: an error there is raised, unless it is a full disk
    or a server that is away. All other calls come from one thread of the sink's own, one at a time, so no step waits
    for them. If `write` raises, a WARNING says so, the training goes on, and its points are lost; the next ones are
    tried after ten seconds. What comes meanwhile waits, up to 10,000 summaries or 64 MB. The end of the session says
    how many were lost. A session with `strict_events=True` ends with the error.

    Attributes:
        takes: The kinds of points that `write` is given, and "hparams" if `open` does something with them. Of other
            kinds one line in the log says that they are left out.
        close_secs: How long the end of a session waits until the last points are written.

    Example:
        >>> import hookline as hl, numpy as np
        >>> class Show(Sink):
        ...     def write(self, points):
        ...         for point in points:
        ...             print(point.step, point.tag, point.value)
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / (1 + w)}
        >>> loop = hl.train.Loop(train_step, np.float32(0), hl.data.arrays(np.ones(4), batch_size=1))
        >>> _ = loop.run(sinks=[Show()], save_summaries_steps=2, progress=False)
        1 loss 1.0
        3 loss 0.33333334
    """

    takes: Collection[str] = ("scalar",)
    close_secs: float = 120.0

    def open(self, start: Start) -> None:
        """Begins, or goes on where `start` says; called again after a recovery.

        Raises:
            OSError: It cannot begin now; it is tried again if the reason may pass, and an error of the session if not.
        """

    def write(self, points: Sequence[Point]) -> None:
        """Writes points, in the order in which they came: those of about a second.

        Raises:
            Exception: They are lost.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Returns when what was written will survive; called before a checkpoint is committed."""

    def close(self, failed: bool) -> None:
        """Ends; `failed` says whether an error has ended the training."""
