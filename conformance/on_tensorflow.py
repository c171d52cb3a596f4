"""The neutral interface on TensorFlow: `tf.compat.v1`, graphs and resource variables."""

from __future__ import annotations

import contextlib
import glob
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.training import evaluation, training_util

tf.disable_eager_execution()

LOGGER = "tensorflow"

# Every module of tf.train that reads the time or sleeps.
_TIMED = [
    f"tensorflow.python.{name}.time"
    for name in (
        "training.basic_session_run_hooks",
        "training.session_manager",
        "training.evaluation",
        "training.coordinator",
        "training.saver",
        "checkpoint.checkpoint_management",
        "training.checkpoint_utils",
    )
]


class TensorFlow:
    """See `conformance.system.System`."""

    name = "tensorflow"
    folder = ""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)

    def matmul(self, a: Any, b: Any) -> Any:
        return tf.matmul(a, b)

    def total(self, x: Any) -> Any:
        return tf.reduce_sum(x)

    def host(self, fn: Any, *inputs: Any, dtype: str = "float32") -> Any:
        return tf.py_func(lambda *values: np.asarray(fn(*values), dtype), list(inputs), dtype)

    def counted(self, step: Any, by: int) -> Any:
        # As models of tf.estimator do. A plain assign_add may come before or after the read of a hook.
        return training_util._increment_global_step(by)

    def initial(self, variable: Any) -> Any:
        return variable.initial_value

    def sgd(self, rate: float) -> Any:
        return tf.train.GradientDescentOptimizer(rate)

    def adam(self, rate: float) -> Any:
        return tf.train.AdamOptimizer(rate)

    def events(self, directory: str) -> list[Any]:
        files = sorted(glob.glob(f"{directory}/*tfevents*"))
        return [event for file in files for event in tf.train.summary_iterator(file)]

    def text_of(self, value: Any) -> Any:
        return tf.make_ndarray(value.tensor).tolist()

    def profiled(self, directory: str) -> list[int]:
        return sorted(int(path[:-5].rpartition("-")[2]) for path in glob.glob(f"{directory}/timeline-*.json"))

    @contextlib.contextmanager
    def clock(self) -> Iterator[_StillTime]:
        still = _StillTime()
        with contextlib.ExitStack() as patches:
            for module in _TIMED:
                patches.enter_context(mock.patch(module, still.module, create=False))
            yield still

    def options(self, trace_level: int = 0, graphs: bool = False) -> Any:
        return tf.RunOptions(trace_level=trace_level, output_partition_graphs=graphs)

    def reset(self) -> None:
        tf.summary.FileWriterCache.clear()
        tf.reset_default_graph()

    SessionLog, Event, LogMessage = tf.SessionLog, tf.Event, tf.LogMessage

    # Not public in tf.train, but what tf.estimator and tf_slim are built on.
    evaluate_once = staticmethod(evaluation._evaluate_once)
    StopAfterNEvalsHook = evaluation._StopAfterNEvalsHook
    get_or_create_eval_step = staticmethod(evaluation._get_or_create_eval_step)


class _StillTime:
    def __init__(self) -> None:
        self._now = 1_000_000.0
        self.module = types.SimpleNamespace(time=self.now, sleep=self.advance, monotonic=self.now)

    def now(self) -> float:
        return self._now

    def advance(self, secs: float) -> None:
        self._now += secs


system = TensorFlow()
