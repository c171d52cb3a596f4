"""The real client of MLflow, on a file store, and a server that is away."""

from __future__ import annotations

import io
import math
import socket
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hookline.sinks import Mlflow, Point, RunInfo

from .conftest import losses, scalar, train

mlflow: Any = pytest.importorskip("mlflow", reason="no client: pip install mlflow-skinny", exc_type=ImportError)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return str(tmp_path / "mlruns")


@pytest.fixture
def runs(store):
    """The runs of the experiment, by a client of their own."""
    client = mlflow.MlflowClient(store)

    def runs():
        return client, client.search_runs([client.get_experiment_by_name("mine").experiment_id])

    return runs


def points(client, run):
    return sorted(
        (metric.step, tag, float(np.float32(metric.value)))
        for tag in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, tag)
    )


def test_resumed_run_is_one_run_without_duplicates(tmp_path, store, runs, said):
    train(tmp_path, 8, [Mlflow("mine", tracking_uri=store, run_name="first")], hparams={"rate": 0.1, "sizes": [3, 4]})
    train(tmp_path, 12, [Mlflow("mine", tracking_uri=store)], hparams={"rate": 0.2, "sizes": [3, 4], "new": 1})
    client, (run,) = runs()
    assert points(client, run) == losses(12)
    assert run.data.params == {"rate": "0.1", "sizes": "[3, 4]", "new": "1"}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert any("keeps the first values of hyperparameters that have changed since: ['rate']" in line for line in said())


def test_text_and_images_are_artifacts_with_valid_names(tmp_path, store, runs):
    png = io.BytesIO()
    Image.new("RGB", (2, 3)).save(png, "png")
    sink = Mlflow("mine", tracking_uri=store, tags={"team": "a"})
    sink.open(RunInfo(str(tmp_path), 0, {}, is_new=True))
    sink.write([scalar(1, math.nan, "top 5 (%)"), scalar(2, math.inf), *[scalar(step) for step in range(3, 1500)]])
    sink.write([Point("text", "note", 3, 1.0, "a"), Point("image", "seen/image", 3, 1.0, png.getvalue())])
    sink.close(failed=True)
    client, (run,) = runs()
    assert math.isnan(run.data.metrics["top 5 ___"])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [history[0].value, len(history)] == [math.inf, 1498]
    assert {file.path for file in client.list_artifacts(run.info.run_id, "text/note")} == {"text/note/3.md"}
    assert len(client.list_artifacts(run.info.run_id, "images")) == 2
    assert (run.info.status, run.data.tags["team"]) == ("FAILED", "a")


def test_unreachable_server_loses_points_but_not_the_training(tmp_path, said):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{free.getsockname()[1]}"
    train(tmp_path, 4, [Mlflow("mine", tracking_uri=away)])
    first, *_, last = said()
    assert first.startswith("WARNING: Mlflow has failed with ConnectionError: ")
    assert last == "WARNING: Mlflow: summaries lost in this session: 3."


def test_deleted_run_is_an_error_that_names_the_file(tmp_path, store):
    sink = Mlflow("mine", tracking_uri=store)
    (tmp_path / ".mlflow.json").write_text('{"run": "00000000000000000000000000000000", "sent": {}}')
    with pytest.raises(mlflow.MlflowException) as caught:
        sink.open(RunInfo(str(tmp_path), 4, {}, is_new=False))
    assert "The run to continue, 00000" in caught.value.__notes__[0]
    assert ".mlflow.json'. Without that file a new run starts." in caught.value.__notes__[0]


def test_invalid_store_is_an_error_at_the_start(tmp_path):
    with pytest.raises(mlflow.MlflowException):
        train(tmp_path, 4, [Mlflow("mine", tracking_uri="gopher://nowhere")])
    with pytest.raises(TypeError, match="Mlflow requires text as experiment"):
        Mlflow(3)
