"""Hooks: the contract between a session and its hooks, triggers, and the built-in hooks."""

from __future__ import annotations

from hookline.hooks.base import Firing, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.control.checkpoint_saver import CheckpointSaverHook
from hookline.hooks.control.feed_fn import FeedFnHook
from hookline.hooks.control.final_ops import FinalOpsHook
from hookline.hooks.control.function import FunctionHook
from hookline.hooks.control.global_step_waiter import GlobalStepWaiterHook
from hookline.hooks.control.nan_tensor import NanTensorHook
from hookline.hooks.control.stop_after_n_evals import StopAfterNEvalsHook
from hookline.hooks.control.stop_at_step import StopAtStepHook
from hookline.hooks.control.time_limit import TimeLimitHook
from hookline.hooks.control.watchdog import WatchdogHook
from hookline.hooks.only_for import only_for
from hookline.hooks.reporting.logging_tensor import LoggingTensorHook
from hookline.hooks.reporting.profiler import ProfilerHook
from hookline.hooks.reporting.progress import ProgressHook
from hookline.hooks.reporting.sink_hook import SinkHook
from hookline.hooks.reporting.step_counter import StepCounterHook
from hookline.hooks.reporting.summary_at_end import SummaryAtEndHook
from hookline.hooks.reporting.summary_saver import SummarySaverHook
from hookline.hooks.timers import NeverTriggerTimer, SecondOrStepTimer
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import at_steps, every, first_run, first_then_every, latched, log_spaced, when_step
