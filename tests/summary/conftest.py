"""How these tests look at what was written: with TensorBoard's own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.testing import read_events


@pytest.fixture
def steps() -> Callable[[Path], list[int]]:
    """The steps of all summaries in a directory."""
    return lambda logdir: [event.step for event in read_events(logdir) if event.HasField("summary")]


@pytest.fixture
def accumulate() -> Callable[[Path], Any]:
    """TensorBoard's view of a directory, with all points kept."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return lambda logdir: EventAccumulator(str(logdir), size_guidance={"scalars": 0, "histograms": 0}).Reload()
