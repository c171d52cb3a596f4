"""Sessions that initialise or restore themselves, call hooks around every run, recover, and end in order."""

from __future__ import annotations

from hookline.monitored.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from hookline.monitored.evaluation import evaluate_once, evaluate_repeatedly
from hookline.monitored.hook_list import HookList
from hookline.monitored.hooked import HookedSession
from hookline.monitored.monitored_session import MonitoredSession, SingularMonitoredSession
from hookline.monitored.options import USE_DEFAULT, CheckpointOptions, LoggingOptions, PreemptionOptions
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.recovery import DEFAULT_RECOVERY, RecoveryPolicy
from hookline.monitored.scaffold import Scaffold
from hookline.monitored.session_manager import SessionManager
from hookline.monitored.step_context import StepContext
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.training_session import MonitoredTrainingSession
