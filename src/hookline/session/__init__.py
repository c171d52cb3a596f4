"""Sessions: runs of a graph, their options, and the store of variables."""

from hookline.session.cached_step import CHANGED, CachedStep
from hookline.session.config import SessionConfig
from hookline.session.late import LateResults
from hookline.session.options import RunMetadata, RunOptions, merge_options
from hookline.session.raw_session import LowLevel, RawSession, answers
from hookline.session.retry import RETRY, Retry
from hookline.session.session import Session
from hookline.session.sources import OpenSource, Position
from hookline.session.store import StoreTarget, VariableStore, resolve_target
from hookline.session.watched import Watched

__all__ = [
    "CHANGED",
    "RETRY",
    "CachedStep",
    "LateResults",
    "LowLevel",
    "OpenSource",
    "Position",
    "RawSession",
    "Retry",
    "RunMetadata",
    "RunOptions",
    "Session",
    "SessionConfig",
    "StoreTarget",
    "VariableStore",
    "Watched",
    "answers",
    "merge_options",
    "resolve_target",
]
