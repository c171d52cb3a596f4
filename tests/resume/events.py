"""The values that TensorBoard shows of a directory."""

from __future__ import annotations

from tensorboard.backend.event_processing.plugin_event_accumulator import TENSORS, EventAccumulator
from tensorboard.util import tensor_util


def shown(directory):
    """Returns the steps and values of each scalar, as TensorBoard shows them: without what it purges at a restart.

    Of a tag that measures time, only the steps.
    """
    accumulator = EventAccumulator(directory, size_guidance={TENSORS: 0}).Reload()
    return {
        tag: [
            (event.step, None if tag.endswith("/sec") else float(tensor_util.make_ndarray(event.tensor_proto)))
            for event in accumulator.Tensors(tag)
        ]
        for tag in accumulator.Tags()["tensors"]
        if not tag.startswith("__")
    }
