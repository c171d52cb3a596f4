"""`tf.contrib.metrics`: combines several metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.metrics import accuracy as streaming_accuracy
from hookline_tf1.metrics import auc as streaming_auc
from hookline_tf1.metrics import mean as streaming_mean

__all__ = ["aggregate_metric_map", "aggregate_metrics", "streaming_accuracy", "streaming_auc", "streaming_mean"]

__getattr__, __dir__ = offered("tf.contrib.metrics", lambda: __all__)


def aggregate_metrics(*value_update_tuples: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the values and the updates of several metrics."""
    if not value_update_tuples:
        raise ValueError("aggregate_metrics requires at least one pair of a value and an update, got none.")
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: Mapping[str, tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values and the updates of several metrics, by name."""
    values = {name: value for name, (value, _) in names_to_tuples.items()}
    return values, {name: update for name, (_, update) in names_to_tuples.items()}
