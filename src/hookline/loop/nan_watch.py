"""The NaN watch of a loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hookline import log
from hookline.graph import Tensor
from hookline.hooks import NanTensorHook
from hookline.loop.metrics import ALONE

_logger = log.of(__name__)


def nan_hooks(metrics: Mapping[str, Tensor], returned: Collection[str], watch: str, on_nan: str) -> list[NanTensorHook]:
    """Returns the hook that watches a metric; none, with a warning, if no metric has the default name.

    Args:
        metrics: The metrics.
        returned: The names of metrics that the step returns, for the warning; a learning rate is not among them.
        watch: As in `Loop.session`.
        on_nan: As in `Loop.session`.

    Raises:
        ValueError: There is no such metric.
    """
    if watch in metrics:
        return [NanTensorHook(metrics[watch], on_nan=on_nan)]
    if watch != ALONE or on_nan != "raise":
        raise ValueError(
            f"Loop: there is no metric {watch!r} to watch for NaN. There are: {', '.join(metrics) or 'none'}."
        )
    if returned:
        like = [name for name in returned if name.endswith("loss")]
        _logger.warning(
            "Loop: no metric is called 'loss', so none is watched for NaN. Give one, watch=%r, or watch=None.",
            [*like, *returned][0],
        )
    return []
