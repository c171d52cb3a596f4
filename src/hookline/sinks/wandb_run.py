"""Wandb: a run of Weights & Biases."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import Any

from hookline.sinks.service import Service
from hookline.sinks.sink import Histogram, Point, Start

_STEP = "global_step"


class Wandb(Service):
    """Sends scalars, text, images, histograms and hyperparameters to Weights & Biases (extra `[wandb]`).

    The x axis of all charts is the global step, logged as `global_step`, because W&B's own step only goes up, and
    evaluations may come late. After a restart the session continues the same run and sends no point twice; the points
    of a repeated step keep their first value. The id of the run is in `.wandb.json` in the directory for summaries.

    Args:
        **init: Arguments of `wandb.init`: `project`, `entity`, `name`, `mode="offline"`, ... If a run is active
            already, it is used, and not ended.

    Raises:
        ImportError: The client is not installed.

    Example:
        `loop.run("runs/a", logging=LoggingOptions(sinks=[Wandb(project="digits", mode="offline")]))`
    """

    takes = ("scalar", "text", "image", "histogram", "hparams")
    name = "wandb"

    def __init__(self, **init: Any) -> None:
        super().__init__()
        self._init = init
        self._live: Any = None
        self._is_given = False

    def connect(self, run: str | None, start: Start) -> str:
        """Starts a run, or continues one."""
        again = {} if run is None else {"id": run, "resume": "allow"}
        self._is_given = self.client.run is not None
        try:
            self._live = self.client.run or self.client.init(**{"dir": start.folder, **self._init, **again})
        except self.client.errors.CommError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        self._live.config.update(start.hparams, allow_val_change=True)
        self._live.define_metric("*", step_metric=_STEP)
        return self._live.id

    def send(self, points: Sequence[Point]) -> None:
        """Logs the points of each step together."""
        values: dict[str, Any] = {}
        for point, following in zip(points, [*points[1:], None], strict=True):
            values[point.tag] = self._value(point)
            if following is None or following.step != point.step or following.tag in values:
                self._live.log(values if point.step is None else values | {_STEP: point.step})
                values = {}

    def disconnect(self, failed: bool) -> None:
        """Ends the run, as failed or finished."""
        if not self._is_given:
            self._live.finish(exit_code=int(failed))

    def _value(self, point: Point) -> Any:
        if point.kind == "image":
            from PIL import Image

            return self.client.Image(Image.open(io.BytesIO(point.value)))
        if point.kind == "text":
            return self.client.Html(f"<pre>{html.escape(point.value)}</pre>")
        if point.kind == "histogram":
            return self.client.Histogram(np_histogram=_edged(point.value, self.client.Histogram.MAX_LENGTH))
        return point.value


def _edged(histogram: Histogram, most: int) -> tuple[list[float], list[float]]:
    """Merges a histogram to at most `most` counts; returns them and the edges of their buckets."""
    counts, edges = histogram.counts, [min([histogram.least, *histogram.limits[:1]]), *histogram.limits]
    if counts and not counts[0]:  # An empty first bucket only marks the start of the second.
        counts, edges = counts[1:], edges[1:]
    width = -(-len(counts) // most) or 1
    merged = [sum(counts[place : place + width]) for place in range(0, len(counts), width)]
    return merged, [*edges[:-1:width], edges[-1]]
