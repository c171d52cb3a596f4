"""Sends summaries to Weights & Biases and MLflow: a restart continues the run and sends no point twice."""

from __future__ import annotations

import html
import importlib
import io
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from hookline import arguments, log
from hookline.checkpoint.saving import durable
from hookline.sinks.sink import Histogram, Point, RunInfo, Sink

_logger = log.get_logger(__name__)


class Service(Sink):
    """A service to whose runs points can only be added.

    The id of the run, and the last step sent for each tag, are in a file in the directory for summaries. A session that
    resumes a training there continues the same run, and leaves out the points already sent. A new training starts a new
    run.
    """

    name = ""
    """The name of the client's package, of the extra of hookline that installs it, and of the file."""

    def __init__(self) -> None:
        try:
            self.client: Any = importlib.import_module(self.name)
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__} requires the package {self.name}: pip install {self.name}"
            ) from error
        self._path: str | None = None
        self._run: str | None = None
        self._sent: dict[str, int] = {}
        self._sent_before: dict[str, int] = {}

    def connect(self, run: str | None, start: RunInfo) -> str:
        """Continues a run, or starts one; returns its id.

        Raises:
            ConnectionError: The service cannot be reached now.
        """
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """Sends points."""
        raise NotImplementedError

    def disconnect(self, failed: bool) -> None:
        """Ends the run."""
        raise NotImplementedError

    def open(self, start: RunInfo) -> None:
        """Continues or starts the run."""
        if self._run is None:
            self._path = os.path.join(start.folder, f".{self.name}.json") if start.folder else None
            known, self._sent = (None, {}) if start.is_new else self._load_state()
            try:
                self._run = self.connect(known, start)
            except Exception as error:
                if known is not None:
                    error.add_note(
                        f"The run to continue, {known}, is from '{self._path}'. Without that file a new run starts."
                    )
                raise
            self._save_state()
        self._sent_before = dict(self._sent)

    def write(self, points: Sequence[Point]) -> None:
        """Sends the points that were not sent before."""
        new = [point for point in points if point.step is None or point.step > self._sent_before.get(point.tag, -1)]
        if new:
            self.send(new)
            self._sent |= {point.tag: point.step for point in new if point.step is not None}
            self._save_state()

    def close(self, failed: bool) -> None:
        """Ends the run; a later session may continue it."""
        self._run = None
        self.disconnect(failed)

    def _load_state(self) -> tuple[str | None, dict[str, int]]:
        if self._path is None or not os.path.exists(self._path):
            return None, {}
        with open(self._path, encoding="utf-8") as file:
            found = json.load(file)
        return found["run"], found["sent"]

    def _save_state(self) -> None:
        if self._path is None:
            return
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            durable.write_text(self._path, json.dumps({"run": self._run, "sent": self._sent}))
        except OSError as error:
            _logger.warning(
                "%s could not write '%s', and continues without it: %s. After a restart, points may be sent twice, or "
                "to a new run.",
                type(self).__name__,
                self._path,
                error,
            )


_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
_MAX_BATCH = 1000  # The servers reject larger batches.
_TRANSIENT_CODES = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")


class Mlflow(Service):
    """Sends scalars, text, images and hyperparameters to MLflow, with its client (package `mlflow-skinny`).

    Scalars become metrics, hyperparameters become parameters, text and images become artifacts. After a restart the
    session continues the same run and sends no point twice; the points of a repeated step keep their first value. The
    id of the run is in `.mlflow.json` in the directory for summaries. MLflow does not change a run's parameters: a
    warning names parameters with a new value.

    Args:
        experiment: The name of the experiment, which is created if it does not exist.
        tracking_uri: The address of the server or the store; by default the value of `MLFLOW_TRACKING_URI`.
        run_name: The name of a new run.
        tags: Tags of a new run.

    Raises:
        ImportError: The client is not installed.

    Example:
        >>> import contextlib, hookline as hl
        >>> with contextlib.suppress(ImportError):  # The client may not be installed.
        ...     sink = Mlflow("digits", tracking_uri="http://localhost:5000")
        ...     logging = hl.train.LoggingOptions(sinks=[sink])  # For `loop.run("runs/a", logging=logging)`.
    """

    takes = ("scalar", "text", "image", "hparams")
    name = "mlflow"

    def __init__(
        self,
        experiment: str = "Default",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        tags: dict[str, Any] | None = None,
    ) -> None:
        for argument, value in (("experiment", experiment), ("tracking_uri", tracking_uri), ("run_name", run_name)):
            arguments.check_str("Mlflow", argument, value, optional=argument != "experiment")
        super().__init__()
        self._experiment, self._uri, self._name = experiment, tracking_uri, run_name
        self._tags = arguments.check_mapping("Mlflow", "tags", tags, optional=True)
        self._mlflow_client: Any = None
        self._id = ""

    def connect(self, run: str | None, start: RunInfo) -> str:
        """Starts a run, or continues one."""
        try:
            return self._start_run(run, start)
        except self.client.MlflowException as error:
            if error.error_code in _TRANSIENT_CODES:
                raise ConnectionError(str(error)) from error
            raise

    def _start_run(self, run: str | None, start: RunInfo) -> str:
        self._mlflow_client = self.client.MlflowClient(self._uri)
        if run is None:
            found = self._mlflow_client.get_experiment_by_name(self._experiment)
            where = self._mlflow_client.create_experiment(self._experiment) if found is None else found.experiment_id
            self._id = self._mlflow_client.create_run(where, run_name=self._name, tags=self._tags).info.run_id
        else:
            self._mlflow_client.update_run(run, status="RUNNING")
            self._id = run
        known = self._mlflow_client.get_run(self._id).data.params
        given = {_clean_name(name): str(value) for name, value in start.hparams.items()}
        changed = [name for name in known if given.get(name, known[name]) != known[name]]
        if changed:
            _logger.warning("Mlflow keeps the first values of hyperparameters that have changed since: %s.", changed)
        entities = self.client.entities
        for name, value in given.items():
            if name not in known:
                self._mlflow_client.log_batch(self._id, params=[entities.Param(name, value)])
        return self._id

    def send(self, points: Sequence[Point]) -> None:
        """Logs metrics, in batches, and artifacts."""
        numbers = [
            self.client.entities.Metric(_clean_name(point.tag), point.value, int(point.time * 1000), point.step or 0)
            for point in points
            if point.kind == "scalar"
        ]
        for start in range(0, len(numbers), _MAX_BATCH):
            self._mlflow_client.log_batch(self._id, metrics=numbers[start : start + _MAX_BATCH])
        for point in points:
            if point.kind == "image":
                from PIL import Image

                image = Image.open(io.BytesIO(point.value))
                self._mlflow_client.log_image(self._id, image, key=_clean_name(point.tag), step=point.step or 0)
            elif point.kind == "text":
                self._mlflow_client.log_text(
                    self._id, point.value, f"text/{_clean_name(point.tag)}/{point.step or 0}.md"
                )

    def disconnect(self, failed: bool) -> None:
        """Ends the run, as failed or finished."""
        self._mlflow_client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _clean_name(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)


_STEP = "global_step"


class Wandb(Service):
    """Sends scalars, text, images, histograms and hyperparameters to Weights & Biases (package `wandb`).

    The x axis of all charts is the global step, logged as `global_step`, because W&B's own step must not decrease, and
    evaluations may log an earlier step. After a restart the session continues the same run and sends no point twice;
    the points of a repeated step keep their first value. The id of the run is in `.wandb.json` in the directory for
    summaries.

    Args:
        **init: Arguments of `wandb.init`: `project`, `entity`, `name`, `mode="offline"`, ... If a run is active
            already, it is used, and not ended.

    Raises:
        ImportError: The client is not installed.

    Example:
        >>> import contextlib, hookline as hl
        >>> with contextlib.suppress(ImportError):  # The client may not be installed.
        ...     sink = Wandb(project="digits", mode="offline")
        ...     logging = hl.train.LoggingOptions(sinks=[sink])  # For `loop.run("runs/a", logging=logging)`.
    """

    takes = ("scalar", "text", "image", "histogram", "hparams")
    name = "wandb"

    def __init__(self, **init: Any) -> None:
        super().__init__()
        self._init = init
        self._wandb_run: Any = None
        self._is_given = False

    def connect(self, run: str | None, start: RunInfo) -> str:
        """Starts a run, or continues one."""
        again = {} if run is None else {"id": run, "resume": "allow"}
        self._is_given = self.client.run is not None
        try:
            self._wandb_run = self.client.run or self.client.init(**{"dir": start.folder, **self._init, **again})
        except self.client.errors.CommError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        self._wandb_run.config.update(start.hparams, allow_val_change=True)
        self._wandb_run.define_metric("*", step_metric=_STEP)
        return self._wandb_run.id

    def send(self, points: Sequence[Point]) -> None:
        """Logs the points of each step together."""
        values: dict[str, Any] = {}
        for point, following in zip(points, [*points[1:], None], strict=True):
            values[point.tag] = self._value(point)
            if following is None or following.step != point.step or following.tag in values:
                self._wandb_run.log(values if point.step is None else values | {_STEP: point.step})
                values = {}

    def disconnect(self, failed: bool) -> None:
        """Ends the run, as failed or finished."""
        if not self._is_given:
            self._wandb_run.finish(exit_code=int(failed))

    def _value(self, point: Point) -> Any:
        if point.kind == "image":
            from PIL import Image

            return self.client.Image(Image.open(io.BytesIO(point.value)))
        if point.kind == "text":
            return self.client.Html(f"<pre>{html.escape(point.value)}</pre>")
        if point.kind == "histogram":
            return self.client.Histogram(np_histogram=_merge_buckets(point.value, self.client.Histogram.MAX_LENGTH))
        return point.value


def _merge_buckets(histogram: Histogram, most: int) -> tuple[list[float], list[float]]:
    """Merges the buckets of a histogram to at most `most`; returns their counts and edges."""
    counts, edges = histogram.counts, [min([histogram.least, *histogram.limits[:1]]), *histogram.limits]
    if counts and not counts[0]:  # An empty first bucket only gives the lower limit of the second.
        counts, edges = counts[1:], edges[1:]
    width = -(-len(counts) // most) or 1
    merged = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    return merged, [*edges[:-1:width], edges[-1]]
