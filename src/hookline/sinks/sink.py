"""The base class of sinks, which receive the summaries and hyperparameters of a training run."""

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
        step: The global step; None if the summary was written without one.
        time: Seconds since the epoch.
        value: A float for a scalar, a string for a text, the bytes of a PNG for an image, the bytes of a WAV for audio,
            a `Histogram` for a histogram. A scalar of a summary is a 32-bit float; here it has
            no spurious digits: 0.1, not 0.10000000149.

    Example:
        >>> point = Point("scalar", "eval/loss", step=100, time=0.0, value=0.25)
        >>> print(point.step, point.tag, point.value)
        100 eval/loss 0.25
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

    Example:
        >>> histogram = Histogram(least=0.0, limits=[1.0, 2.0], counts=[3.0, 5.0])
        >>> for limit, count in zip(histogram.limits, histogram.counts):
        ...     print(f"up to {limit}: {count:g}")
        up to 1.0: 3
        up to 2.0: 5
    """

    least: float
    limits: list[float]
    counts: list[float]


class RunInfo(NamedTuple):
    """Describes a session that starts, or continues after a recovery; the argument of `Sink.open`.

    Attributes:
        folder: The directory for summaries; None if the session has none.
        step: The global step. After a recovery, points of later steps may be written a second time.
        hparams: Hyperparameters by name: numbers, booleans, strings, None, and lists of them. Nested names have
            slashes.
        is_new: Whether the training run is new. It is not if a checkpoint was restored, or after a recovery.

    Example:
        >>> class Show(Sink):
        ...     def open(self, start):
        ...         print(start.step, start.hparams)
        >>> Show().open(RunInfo(folder=None, step=0, hparams={"rate": 0.1}, is_new=True))
        0 {'rate': 0.1}
    """

    folder: str | None
    step: int
    hparams: dict[str, Any]
    is_new: bool


class Sink:
    """The base class of sinks, which receive the summaries that the hooks of a session write.

    A subclass defines `write`, and may define `open`, `flush` and `close`. The thread of the session calls `open`
    before the first step. All other calls come from one thread of the sink, one at a time, so no step waits for them.

    If `open` raises, the session raises the error; after a full disk or an unreachable server, `open` is called again
    later instead. If `write` raises, its points are lost, a WARNING is logged, and the training continues. The next
    attempt follows after ten seconds; until then up to 10,000 summaries or 64 MB are buffered, and further ones are
    lost. At the end of the session the number of lost summaries is logged. With
    `LoggingOptions(raise_on_write_errors=True)`, the session ends with the error instead.

    Attributes:
        takes: The kinds of points that `write` gets, and "hparams" if `open` uses these. Points of other kinds are
            dropped; for the first of each kind, a message is logged.
        close_secs: How long the end of a session waits for the last points, in seconds.

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
            OSError: The sink cannot open. After a full disk or an unreachable server, `open` is called again later;
                after another error, the session raises it.
        """

    def write(self, points: Sequence[Point]) -> None:
        """Writes the points of about one second, in order.

        Raises:
            Exception: The sink could not write. These points are not written again.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Makes all written points durable. Called before a checkpoint is committed."""

    def close(self, failed: bool) -> None:
        """Closes the sink; `failed` is true if an error has ended the training."""
