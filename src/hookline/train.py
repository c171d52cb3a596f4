"""Training: TensorFlow's names and hookline's own, in one namespace.

TensorFlow's names:

- Sessions: `ChiefSessionCreator`, `MonitoredSession`, `MonitoredTrainingSession`, `Scaffold`, `SessionCreator`,
  `SessionManager`, `SingularMonitoredSession`, `WorkerSessionCreator`
- Hooks and timers: `SessionRunArgs`, `SessionRunContext`, `SessionRunHook`, `SessionRunValues`, `CheckpointSaverHook`,
  `FeedFnHook`, `FinalOpsHook`, `GlobalStepWaiterHook`, `LoggingTensorHook`, `NanTensorHook`, `ProfilerHook`,
  `StepCounterHook`, `StopAfterNEvalsHook`, `StopAtStepHook`, `SummaryAtEndHook`, `SummarySaverHook`,
  `NeverTriggerTimer`, `SecondOrStepTimer`, `NanLossDuringTrainingError`
- Checkpoints: `CheckpointSaverListener`, `CheckpointState`, `Saver`, `assign_from_checkpoint`,
  `assign_from_checkpoint_fn`, `checkpoint_exists`, `checkpoints_iterator`, `get_checkpoint_state`,
  `init_from_checkpoint`, `latest_checkpoint`, `list_variables`, `load_variable`, `wait_for_new_checkpoint`,
  `warm_start`
- Evaluation: `evaluate_once`, `evaluate_repeatedly`, `get_or_create_eval_step`
- Threads: `Coordinator`, `LooperThread`
- Optimizers and the global step: `ExponentialMovingAverage`, `Optimizer`, `assert_global_step`, `create_global_step`,
  `get_global_step`, `get_or_create_global_step`, `global_step`

Hookline's own names:

- A plain training step: `Loop`, `Evaluate`, `EvalResult`, `ReplayResult`, `StopIfNoImprovement`, `WarmStart`, `replay`
- Options: `CheckpointOptions`, `LoggingOptions`, `PreemptionOptions`, `RecoveryPolicy`, `RetryPolicy`
- Hooks: `Firing`, `FunctionHook`, `ProgressHook`, `SinkHook`, `TimeLimitHook`, `WatchdogHook`, `only_for`
- Triggers: `Trigger`, `at_steps`, `every`, `first_run`, `first_then_every`, `latched`, `log_spaced`, `when_step`
- Checkpoints: `load`, `save_safetensors`, `verify`
- Exceptions: `Preempted`

References:
    TensorFlow's names are those of TF 1.15: of `tf.train`, but `StopAfterNEvalsHook`, `SummaryAtEndHook`,
    `wait_for_new_checkpoint` and all under "Evaluation" of `tf.contrib.training`, and `assign_from_checkpoint` and
    `assign_from_checkpoint_fn` of `tf.contrib.framework`. The docstring of each has the differences.
"""

from hookline.signals.interrupts import defer_sigint

with defer_sigint():
    from hookline.checkpoint import (
        CheckpointSaverListener,
        CheckpointState,
        RetryPolicy,
        Saver,
        assign_from_checkpoint,
        assign_from_checkpoint_fn,
        checkpoint_exists,
        checkpoints_iterator,
        get_checkpoint_state,
        init_from_checkpoint,
        latest_checkpoint,
        list_variables,
        load_variable,
        verify,
        wait_for_new_checkpoint,
        warm_start,
    )
    from hookline.coordination import Coordinator, LooperThread
    from hookline.errors import NanLossDuringTrainingError, Preempted
    from hookline.graph import (
        ExponentialMovingAverage,
        Optimizer,
        assert_global_step,
        create_global_step,
        get_global_step,
        get_or_create_eval_step,
        get_or_create_global_step,
        global_step,
    )
    from hookline.hooks import (
        CheckpointSaverHook,
        FeedFnHook,
        FinalOpsHook,
        Firing,
        FunctionHook,
        GlobalStepWaiterHook,
        LoggingTensorHook,
        NanTensorHook,
        NeverTriggerTimer,
        ProfilerHook,
        ProgressHook,
        SecondOrStepTimer,
        SessionRunArgs,
        SessionRunContext,
        SessionRunHook,
        SessionRunValues,
        SinkHook,
        StepCounterHook,
        StopAfterNEvalsHook,
        StopAtStepHook,
        SummaryAtEndHook,
        SummarySaverHook,
        TimeLimitHook,
        Trigger,
        WatchdogHook,
        at_steps,
        every,
        first_run,
        first_then_every,
        latched,
        log_spaced,
        only_for,
        when_step,
    )
    from hookline.loop import (
        EvalResult,
        Evaluate,
        Loop,
        ReplayResult,
        StopIfNoImprovement,
        WarmStart,
        load,
        save_safetensors,
    )
    from hookline.monitored import (
        CheckpointOptions,
        ChiefSessionCreator,
        LoggingOptions,
        MonitoredSession,
        MonitoredTrainingSession,
        PreemptionOptions,
        RecoveryPolicy,
        Scaffold,
        SessionCreator,
        SessionManager,
        SingularMonitoredSession,
        WorkerSessionCreator,
        evaluate_once,
        evaluate_repeatedly,
        replay,
    )

__all__ = [
    "CheckpointOptions",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "Coordinator",
    "EvalResult",
    "Evaluate",
    "ExponentialMovingAverage",
    "FeedFnHook",
    "FinalOpsHook",
    "Firing",
    "FunctionHook",
    "GlobalStepWaiterHook",
    "LoggingOptions",
    "LoggingTensorHook",
    "Loop",
    "LooperThread",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NeverTriggerTimer",
    "Optimizer",
    "Preempted",
    "PreemptionOptions",
    "ProfilerHook",
    "ProgressHook",
    "RecoveryPolicy",
    "ReplayResult",
    "RetryPolicy",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "SessionCreator",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "SinkHook",
    "StepCounterHook",
    "StopAfterNEvalsHook",
    "StopAtStepHook",
    "StopIfNoImprovement",
    "SummaryAtEndHook",
    "SummarySaverHook",
    "TimeLimitHook",
    "Trigger",
    "WarmStart",
    "WatchdogHook",
    "WorkerSessionCreator",
    "assert_global_step",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "at_steps",
    "checkpoint_exists",
    "checkpoints_iterator",
    "create_global_step",
    "evaluate_once",
    "evaluate_repeatedly",
    "every",
    "first_run",
    "first_then_every",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_eval_step",
    "get_or_create_global_step",
    "global_step",
    "init_from_checkpoint",
    "latched",
    "latest_checkpoint",
    "list_variables",
    "load",
    "load_variable",
    "log_spaced",
    "only_for",
    "replay",
    "save_safetensors",
    "verify",
    "wait_for_new_checkpoint",
    "warm_start",
    "when_step",
]
