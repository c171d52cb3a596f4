"""Sinks: destinations for the summaries of a run, beside TensorBoard's event files."""

from __future__ import annotations

from hookline.sinks.files import Csv, JsonLines
from hookline.sinks.services import Mlflow, Wandb
from hookline.sinks.sink import Histogram, Point, RunInfo, Sink

__all__ = ["Csv", "Histogram", "JsonLines", "Mlflow", "Point", "RunInfo", "Sink", "Wandb"]
