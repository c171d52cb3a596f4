"""The sessions that keep a graph finalized, because the first of them found it open."""

from __future__ import annotations

import threading
import weakref

from hookline.graph import Graph

_holders: weakref.WeakKeyDictionary[Graph, weakref.WeakSet[object]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def hold(graph: Graph, session: object) -> None:
    """Records that a session is about to run a graph; if the graph is open now, it is reopened afterwards."""
    with _lock:
        if not graph.finalized:
            _holders.setdefault(graph, weakref.WeakSet())
        if graph in _holders:
            _holders[graph].add(session)


def release(graph: Graph, session: object) -> None:
    """Opens the graph again if this was the last session that held it."""
    with _lock:
        sessions = _holders.get(graph)
        if sessions is None:
            return
        sessions.discard(session)
        if not sessions:
            del _holders[graph]
            graph.reopen()
