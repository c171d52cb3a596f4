"""Sinks: destinations for the summaries of a run, beside TensorBoard's event files."""

from __future__ import annotations

from hookline.sinks.csv_file import Csv
from hookline.sinks.json_lines import JsonLines
from hookline.sinks.mlflow_run import Mlflow
from hookline.sinks.sink import Histogram, Point, Sink, Start
from hookline.sinks.wandb_run import Wandb

__all__ = ["Csv", "Histogram", "JsonLines", "Mlflow", "Point", "Sink", "Start", "Wandb"]
