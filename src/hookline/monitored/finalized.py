"""Who keeps a graph final: the sessions that run one which the first of them found open."""

from __future__ import annotations

import threading
import weakref

from hookline.graph import Graph

_holders: weakref.WeakKeyDictionary[Graph, weakref.WeakSet[object]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def hold(graph: Graph, session: object) -> None:
    """Takes note that a session is about to run a graph, and that it is to be open again if it is open now."""
    with _lock:
        if not graph.finalized:
            _holders.setdefault(graph, weakref.WeakSet())
        if graph in _holders:
            _holders[graph].add(session)


def release(graph: Graph, session: object) -> None:
    """Opens the graph again if this was the last session that holds it."""
    with _lock:
        sessions = _holders.get(graph)
        if sessions is None:
            return
        sessions.discard(session)
        if not sessions:
            del _holders[graph]
            graph.reopen()
