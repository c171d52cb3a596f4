"""The neutral interface on hookline."""

from __future__ import annotations

import contextlib
import glob
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
from tensorboard.compat.proto import event_pb2
from tensorboard.util.tensor_util import make_ndarray

import hookline as hl
import hookline.numpy as hnp
from hookline.testing import FakeClock, read_events

LOGGER = "hookline"

warnings.simplefilter("ignore")


class _StillClock(FakeClock):
    def now(self) -> float:
        return self.time()


class Hookline:
    """See `conformance.system.System`."""

    SessionLog, Event, LogMessage = hl.summary.SessionLog, hl.summary.Event, event_pb2.LogMessage

    name = "hookline"
    folder = ""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(hl if hasattr(hl, name) else hl.train, name)

    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def total(self, x: Any) -> Any:
        return hnp.sum(x)

    def host(self, fn: Any, *inputs: Any, dtype: str = "float32") -> Any:
        return hl.host_op(lambda *values: np.asarray(fn(*values), dtype))(*inputs)

    def counted(self, step: Any, by: int) -> Any:
        return step.assign_add(by)

    def initial(self, variable: Any) -> Any:
        return variable.initialized_value()

    def sgd(self, rate: float) -> Any:
        return hl.train.Optimizer(optax.sgd(rate))

    def adam(self, rate: float) -> Any:
        return hl.train.Optimizer(optax.adam(rate))

    def events(self, directory: str) -> list[Any]:
        return read_events(directory)

    def text_of(self, value: Any) -> Any:
        return make_ndarray(value.tensor).tolist()

    def profiled(self, directory: str) -> list[int]:
        return sorted(int(path.rpartition("_")[2]) for path in glob.glob(f"{directory}/plugins/profile/step_*"))

    @contextlib.contextmanager
    def clock(self) -> Iterator[_StillClock]:
        with _StillClock(autojump_secs=0.02) as clock:
            yield clock

    def options(self, trace_level: int = 0, graphs: bool = False) -> Any:
        return hl.RunOptions(trace_level=trace_level, output_partition_graphs=graphs)

    def reset(self) -> None:
        hl.summary.FileWriterCache.clear()
        hl.reset_default_graph()


system = Hookline()
