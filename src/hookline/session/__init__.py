"""Sessions: runs of a graph, their options, and the store of variables."""

from hookline.session import origin
from hookline.session.cached_step import CHANGED, CachedStep
from hookline.session.deferred import DeferredResults
from hookline.session.hook_fetches import HookFetches
from hookline.session.options import RunMetadata, RunOptions, SessionConfig, merge_options
from hookline.session.raw_session import LowLevel, RawSession, hook_results
from hookline.session.retry import RETRY, Retry
from hookline.session.session import Session
from hookline.session.sources import OpenSource, Position
from hookline.session.store import StoreTarget, VariableStore, resolve_target
