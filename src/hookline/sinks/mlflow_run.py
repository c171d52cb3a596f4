"""Mlflow: a run of MLflow."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from hookline import arguments, log
from hookline.sinks.service import Service
from hookline.sinks.sink import Point, Start

_logger = log.of(__name__)
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
_AT_ONCE = 1000  # The servers refuse more.
_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")


class Mlflow(Service):
    """Sends scalars, text, images and hyperparameters to MLflow, with its client (extra `[mlflow]`).

    Scalars become metrics, hyperparameters become parameters, text and images become artifacts. After a restart the
    session continues the same run and sends no point twice; the points of a repeated step keep their first value. The
    id of the run is in `.mlflow.json` in the directory for summaries. A parameter of a run cannot change: a warning
    names those with a new value.

    Args:
        experiment: The name of the experiment, which is created if it does not exist.
        tracking_uri: The address of the server or the store; by default that of `MLFLOW_TRACKING_URI`.
        run_name: The name of a new run.
        tags: Tags of a new run.

    Raises:
        ImportError: The client is not installed.

    Example:
        `loop.run("runs/a", logging=LoggingOptions(sinks=[Mlflow("digits", tracking_uri="http://localhost:5000")]))`
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
            arguments.text("Mlflow", argument, value, optional=argument != "experiment")
        super().__init__()
        self._experiment, self._uri, self._name = experiment, tracking_uri, run_name
        self._tags = arguments.mapping("Mlflow", "tags", tags, optional=True)
        self._runs: Any = None
        self._id = ""

    def connect(self, run: str | None, start: Start) -> str:
        """Starts a run, or continues one."""
        try:
            return self._connected(run, start)
        except self.client.MlflowException as error:
            if error.error_code in _PASSING:
                raise ConnectionError(str(error)) from error
            raise

    def _connected(self, run: str | None, start: Start) -> str:
        self._runs = self.client.MlflowClient(self._uri)
        if run is None:
            found = self._runs.get_experiment_by_name(self._experiment)
            where = self._runs.create_experiment(self._experiment) if found is None else found.experiment_id
            self._id = self._runs.create_run(where, run_name=self._name, tags=self._tags).info.run_id
        else:
            self._runs.update_run(run, status="RUNNING")
            self._id = run
        known = self._runs.get_run(self._id).data.params
        given = {_clean(name): str(value) for name, value in start.hparams.items()}
        changed = [name for name in known if given.get(name, known[name]) != known[name]]
        if changed:
            _logger.warning("Mlflow keeps the hyperparameters of the run's beginning, other values now: %s.", changed)
        entities = self.client.entities
        for name, value in given.items():
            if name not in known:
                self._runs.log_batch(self._id, params=[entities.Param(name, value)])
        return self._id

    def send(self, points: Sequence[Point]) -> None:
        """Logs metrics, in batches, and artifacts."""
        numbers = [
            self.client.entities.Metric(_clean(point.tag), point.value, int(point.time * 1000), point.step or 0)
            for point in points
            if point.kind == "scalar"
        ]
        for place in range(0, len(numbers), _AT_ONCE):
            self._runs.log_batch(self._id, metrics=numbers[place : place + _AT_ONCE])
        for point in points:
            if point.kind == "image":
                from PIL import Image

                image = Image.open(io.BytesIO(point.value))
                self._runs.log_image(self._id, image, key=_clean(point.tag), step=point.step or 0)
            elif point.kind == "text":
                self._runs.log_text(self._id, point.value, f"text/{_clean(point.tag)}/{point.step or 0}.md")

    def disconnect(self, failed: bool) -> None:
        """Ends the run, as failed or finished."""
        self._runs.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _clean(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
