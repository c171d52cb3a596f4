"""The NaN watch of a loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hookline import log
from hookline.graph import Tensor
from hookline.hooks import NanTensorHook
from hookline.loop.metrics import ALONE
from hookline.loop.returned_names import is_loss

_logger = log.of(__name__)


def nan_hooks(metrics: Mapping[str, Tensor], returned: Collection[str], watch: str, on_nan: str) -> list[NanTensorHook]:
    """Returns the hook that watches a metric, or hooks for all losses if none has the default name.

    Without any loss there is no hook, and a warning.

    Args:
        metrics: The metrics.
        returned: The names of metrics that the step returns; a learning rate is not among them.
        watch: As in `Loop.session`.
        on_nan: As in `Loop.session`.

    Raises:
        ValueError: There is no such metric.
    """
    losses = [watch] if watch in metrics else [name for name in returned if watch == ALONE and is_loss(name)]
    if losses:
        return [NanTensorHook(metrics[name], on_nan=on_nan) for name in losses]
    if watch != ALONE or on_nan != "raise":
        raise ValueError(
            f"Loop: there is no metric {watch!r} to watch for NaN. There are: {', '.join(metrics) or 'none'}."
        )
    if returned:
        _logger.warning(
            "Loop: no metric is called a loss, so none is watched for NaN. Give one, watch=%r, or watch=None.",
            next(iter(returned)),
        )
    return []
