"""Sessions: runs of a graph, their options, and the store of variables."""

from hookline.session import origin
from hookline.session.options import RunMetadata, RunOptions, SessionConfig, merge_options
from hookline.session.plan.request import HookFetches
from hookline.session.plan.result_readers import DeferredResults
from hookline.session.plan.source_positions import OpenSource, Position
from hookline.session.raw_session import Backend, RawSession, hook_results
from hookline.session.running.cached_step import STEP_MISMATCH, CachedStep
from hookline.session.running.retry import RETRY, Retry
from hookline.session.session import Session
from hookline.session.store import StoreTarget, VariableStore, resolve_target
