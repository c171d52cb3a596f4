"""`tf.train`: optimizers, decaying rates, sessions with hooks, checkpoints."""

from __future__ import annotations


from hookline.checkpoint import (
    CheckpointSaverListener,
    CheckpointState,
    checkpoint_exists,
    checkpoints_iterator,
    get_checkpoint_state,
    init_from_checkpoint,
    latest_checkpoint,
    list_variables,
    load_variable,
    warm_start,
)
from hookline.compat.v1.hooks import (
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
from hookline.compat.v1.optimizer import Optimizer
from hookline.compat.v1.optimizers import (
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
from hookline.compat.v1.savers import CheckpointReader as NewCheckpointReader
from hookline.compat.v1.savers import Saver, load_checkpoint, write_graph
from hookline.compat.v1.schedules import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)
from hookline.compat.v1.summary import FileWriter as SummaryWriter
from hookline.coordination import Coordinator, LooperThread
from hookline.errors import NanLossDuringTrainingError
from hookline.graph import (
    ExponentialMovingAverage,
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from hookline.hooks import (
    NeverTriggerTimer,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from hookline.monitored import (
    ChiefSessionCreator,
    MonitoredSession,
    MonitoredTrainingSession,
    Scaffold,
    SessionCreator,
    SessionManager,
    SingularMonitoredSession,
    WorkerSessionCreator,
)

warm_start_from_checkpoint = warm_start
piecewise_constant_decay = piecewise_constant
