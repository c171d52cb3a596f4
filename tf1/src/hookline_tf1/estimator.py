"""`tf.estimator`: its names of the hooks, and the modes. There are no Estimators."""

from __future__ import annotations

from hookline.errors import NanLossDuringTrainingError
from hookline.train import CheckpointSaverListener, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.train._hooks import (
    CheckpointSaverHook,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanTensorHook,
    ProfilerHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from hookline_tf1.train._own_callbacks import SecondOrStepTimer

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]

__getattr__, __dir__ = offered("tf.estimator", lambda: __all__)


class ModeKeys:
    """The modes of a model.

    References:
        `tf.estimator.ModeKeys`.
    """

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"
