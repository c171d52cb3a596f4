"""What a script does, as both systems show it: the numbers that its runs return, and its variables."""

from __future__ import annotations

import threading

import numpy as np


class Recorder:
    """Keeps, of every run of the main thread, the single floating point numbers that it returned, and its graph.

    Args:
        limit: After how many such runs the script is ended; None for never.
    """

    def __init__(self, limit=None):
        self.runs, self.graphs, self._depth, self._limit = [], [], 0, limit

    def recording(self, run, fetched):
        """Returns a session's `run` that records its result.

        Args:
            run: `run(session, fetches, ...)`.
            fetched: Returns, of a result, what the caller asked for; hooks' fetches are not recorded.
        """

        def recorded(session, *args, **kwargs):
            if threading.current_thread() is not threading.main_thread():
                return run(session, *args, **kwargs)
            if session.graph not in self.graphs:
                self.graphs.append(session.graph)
            self._depth += 1
            try:
                result = run(session, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                found = list(_numbers(fetched(result)))
                if found:
                    self.runs.append(found)
                if self._limit is not None and len(self.runs) >= self._limit:
                    raise SystemExit(0)
            return result

        return recorded

    def record(self, trainable, known):
        """Returns the record of a script that has ended.

        Args:
            trainable: `trainable(graph)` returns its trainable variables.
            known: `known(graph)` returns all its variables.
        """
        return {
            "runs": self.runs,
            "variables": {_name(v): _shape(v) for graph in self.graphs for v in known(graph)},
            "trainable": sorted({_name(v) for graph in self.graphs for v in trainable(graph)}),
        }


def _name(variable):
    return variable.op.name


def _shape(variable):
    shape = variable.get_shape() if hasattr(variable, "get_shape") else variable.shape
    return list(shape.as_list() if hasattr(shape, "as_list") else shape)


def _numbers(value):
    """Yields the single floating point numbers of a structure, in its order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _numbers(value[key])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, float) or (hasattr(value, "dtype") and np.size(value) == 1):
        number = np.asarray(value)
        if number.dtype.kind == "f":
            yield float(number.reshape(()))
