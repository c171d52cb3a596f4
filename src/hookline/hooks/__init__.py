"""Hooks: the contract between a session and its hooks, timers, and the built-in hooks."""

from __future__ import annotations

from hookline.hooks.base import Firing, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.checkpoint_saver import CheckpointSaverHook
from hookline.hooks.feed_fn import FeedFnHook
from hookline.hooks.final_ops import FinalOpsHook
from hookline.hooks.function import FunctionHook
from hookline.hooks.global_step_waiter import GlobalStepWaiterHook
from hookline.hooks.logging_tensor import LoggingTensorHook
from hookline.hooks.nan_tensor import NanTensorHook
from hookline.hooks.profiler import ProfilerHook
from hookline.hooks.progress import ProgressHook
from hookline.hooks.sinks import SinkHook
from hookline.hooks.step_counter import StepCounterHook
from hookline.hooks.stop_after_n_evals import StopAfterNEvalsHook
from hookline.hooks.stop_at_step import StopAtStepHook
from hookline.hooks.summary_at_end import SummaryAtEndHook
from hookline.hooks.summary_saver import SummarySaverHook
from hookline.hooks.timers import NeverTriggerTimer, SecondOrStepTimer
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import at_steps, every, first_run, latched, log_spaced, spaced, steps_where
from hookline.hooks.watchdog import WatchdogHook
from hookline.hooks.when import when
