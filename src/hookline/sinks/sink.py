"""The base class of sinks, which receive the summaries and hyperparameters of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

KINDS = ("scalar", "text", "image", "audio", "histogram", "hparams")
"""The kinds of points, and "hparams" for hyperparameters."""


class Point(NamedTuple):
    """One value of a summary.

    Attributes:
        kind: "scalar", "text", "image", "audio" or "histogram".
        tag: The name. Tags of an evaluation begin with the evaluation's name: `eval/loss`.
        step: The global step; None if it was written without one.
        time: Seconds since the epoch.
        value: A float for a scalar, a string for a text, the bytes of a PNG for an image, the bytes of a WAV for audio,
            a `Histogram` for a histogram. Summaries hold scalars as 32-bit floats; the value is the shortest number
            that rounds to the same float.
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
        counts: The number of values in each bucket.
    """

    least: float
    limits: list[float]
    counts: list[float]


class RunInfo(NamedTuple):
    """The start of a session, or its continuation after a recovery.

    Attributes:
        folder: The directory for summaries; None if the session has none.
        step: The global step. Points of later steps, from a lost session, will be written again.
        hparams: Hyperparameters by name: numbers, booleans, strings, None, and lists of them. Nested names have
            slashes.
        is_new: Whether the training begins: no checkpoint was restored.
    """

    folder: str | None
    step: int
    hparams: dict[str, Any]
    is_new: bool


class Sink:
    """The base class of sinks, which receive the summaries that the hooks of a session write.

    A subclass defines `write`, and may define `open`, `flush` and `close`. A session calls `open` before its first
    step, on the session's thread: an error there is raised, unless it is a full disk or an unreachable server. All
    other calls are made by one thread of the sink, one at a time, so no step waits for them. If `write` raises, a
    WARNING is logged, the training continues, and these points are lost; the next attempt follows after ten seconds.
    Until then up to 10,000 summaries or 64 MB wait. The number of lost ones is logged at the end of the session. A
    session with `raise_on_write_errors=True` ends with the error.

    Attributes:
        takes: The kinds of points for `write`, and "hparams" if `open` uses them. Other kinds are left out, and each
            is logged once.
        close_secs: The longest wait for the last points at the end of a session.

    Example:
        >>> import hookline as hl, numpy as np
        >>> class Show(Sink):
        ...     def write(self, points):
        ...         for point in points:
        ...             print(point.step, point.tag, point.value)
        >>> def train_step(w, batch):
        ...     return w + batch.mean(), {"loss": 1 / (1 + w)}
        >>> loop = hl.train.Loop(train_step, np.float32(0), hl.data.from_arrays(np.ones(4), batch_size=1))
        >>> _ = loop.run(logging=hl.train.LoggingOptions(sinks=[Show()], summary_steps=2), progress=False)
        1 loss 1.0
        3 loss 0.33333334
    """

    takes: Collection[str] = ("scalar",)
    close_secs: float = 120.0

    def open(self, start: RunInfo) -> None:
        """Opens the sink at the start of a session, and again after a recovery.

        Raises:
            OSError: It cannot open. After a transient cause, such as a full disk, `open` is called again later;
                otherwise the session raises the error.
        """

    def write(self, points: Sequence[Point]) -> None:
        """Writes the points of about one second, in order.

        Raises:
            Exception: The sink failed, and these points are lost.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Makes all written points durable; called before a checkpoint is committed."""

    def close(self, failed: bool) -> None:
        """Closes the sink; `failed` is true if an error has ended the training."""
