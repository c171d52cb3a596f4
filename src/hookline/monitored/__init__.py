"""Monitored sessions: they initialise or restore their model, call hooks around runs, recover, and close gracefully."""

from __future__ import annotations

from hookline.monitored.evaluate_checkpoints import evaluate_once, evaluate_repeatedly
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.monitored_session import MonitoredSession, SingularMonitoredSession
from hookline.monitored.recoverable import DEFAULT_RECOVERY, RecoverableSession, RecoveryPolicy
from hookline.monitored.replaying.request import replay
from hookline.monitored.starting.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.starting.session_manager import SessionManager
from hookline.monitored.step_context import StepContext
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.training_options import USE_DEFAULT, CheckpointOptions, LoggingOptions, PreemptionOptions
from hookline.monitored.training_session import MonitoredTrainingSession
