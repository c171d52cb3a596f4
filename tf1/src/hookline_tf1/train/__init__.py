"""`tf.train`: optimizers, learning rate decay, sessions with hooks, checkpoints."""

from __future__ import annotations

from hookline.errors import NanLossDuringTrainingError
from hookline.train import (
    CheckpointSaverListener,
    CheckpointState,
    ChiefSessionCreator,
    Coordinator,
    LooperThread,
    NeverTriggerTimer,
    Scaffold,
    SessionCreator,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    WorkerSessionCreator,
    assert_global_step,
    checkpoint_exists,
    checkpoints_iterator,
    get_checkpoint_state,
    get_global_step,
    global_step,
    init_from_checkpoint,
    latest_checkpoint,
    load_variable,
    warm_start,
)
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.summary import FileWriter as SummaryWriter
from hookline_tf1.summary import summary_iterator
from hookline_tf1.train._batch import batch, batch_join, shuffle_batch, shuffle_batch_join
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
from hookline_tf1.train._in_default_graph import (
    MonitoredTrainingSession,
    SessionManager,
    create_global_step,
    get_or_create_global_step,
)
from hookline_tf1.train._input_producers import (
    input_producer,
    match_filenames_once,
    range_input_producer,
    slice_input_producer,
    start_queue_runners,
    string_input_producer,
)
from hookline_tf1.train._learning_rate_decay import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)
from hookline_tf1.train._monitored_session import MonitoredSession, SingularMonitoredSession
from hookline_tf1.train._moving_averages import ExponentialMovingAverage
from hookline_tf1.train._optimizer import Optimizer
from hookline_tf1.train._optimizers import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    ProximalAdagradOptimizer,
    ProximalGradientDescentOptimizer,
    RMSPropOptimizer,
)
from hookline_tf1.train._own_callbacks import SecondOrStepTimer
from hookline_tf1.train._saver import CheckpointReader as NewCheckpointReader
from hookline_tf1.train._saver import Saver, list_variables, load_checkpoint, write_graph
from hookline_tf1.train._server import ClusterSpec, Server, replica_device_setter
from hookline_tf1.train._supervisor import Supervisor

__all__ = [
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "ClusterSpec",
    "Coordinator",
    "ExponentialMovingAverage",
    "FeedFnHook",
    "FinalOpsHook",
    "FtrlOptimizer",
    "GlobalStepWaiterHook",
    "GradientDescentOptimizer",
    "LoggingTensorHook",
    "LooperThread",
    "MomentumOptimizer",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NeverTriggerTimer",
    "NewCheckpointReader",
    "Optimizer",
    "ProfilerHook",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "RMSPropOptimizer",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "Server",
    "SessionCreator",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "SummaryWriter",
    "Supervisor",
    "WorkerSessionCreator",
    "assert_global_step",
    "batch",
    "batch_join",
    "checkpoint_exists",
    "checkpoints_iterator",
    "cosine_decay",
    "cosine_decay_restarts",
    "create_global_step",
    "exponential_decay",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "init_from_checkpoint",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "linear_cosine_decay",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "match_filenames_once",
    "natural_exp_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
    "range_input_producer",
    "replica_device_setter",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
    "summary_iterator",
    "warm_start",
    "write_graph",
]

__getattr__, __dir__ = offered("tf.train", lambda: __all__)

piecewise_constant_decay = piecewise_constant
