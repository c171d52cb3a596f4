"""Readers of the written events: TensorBoard's own code."""

from __future__ import annotations

import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python import run

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


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a process of its own, with arguments."""

    def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run("-c", textwrap.dedent(program), *arguments)

    return python


@pytest.fixture
def at_once() -> Callable[[Callable[[int], None], int], None]:
    """Calls a function with each number below a bound, in as many threads."""

    def at_once(function: Callable[[int], None], count: int) -> None:
        threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    return at_once
