"""What a script does, as both systems show it: the numbers that its runs return, and its variables."""

from __future__ import annotations

import threading

import numpy as np


class Recorder:
    """Keeps, of every run of the main thread, the single floating point numbers that it returned, and its graph.

    Of a run that trains it keeps the loss, too, which many scripts do not fetch.

    Args:
        limit: After how many such runs the script is ended; None for never.
    """

    def __init__(self, limit=None):
        self.runs, self.graphs, self._depth, self._limit = [], [], 0, limit
        self._losses = {}

    def note_losses(self, optimizer):
        """Notes of which loss the training operations are that a class of optimizers makes."""
        compute, apply = optimizer.compute_gradients, optimizer.apply_gradients

        def compute_gradients(made_by, loss, *args, **kwargs):
            made_by.noted_loss = None if callable(loss) and not hasattr(loss, "op") else loss
            return compute(made_by, loss, *args, **kwargs)

        def apply_gradients(made_by, *args, **kwargs):
            made = apply(made_by, *args, **kwargs)
            if getattr(made_by, "noted_loss", None) is not None:
                self._losses[_op(made)] = made_by.noted_loss
            return made

        optimizer.compute_gradients, optimizer.apply_gradients = compute_gradients, apply_gradients

    def recording(self, run, fetched, hooked=False):
        """Returns a session's `run` that records its result.

        Args:
            run: `run(session, fetches, ...)`.
            fetched: Returns, of a result, what the caller asked for; hooks' fetches are not recorded.
            hooked: Whether it runs what hooks fetch, too.
        """

        def recorded(session, fetches, *args, **kwargs):
            if threading.current_thread() is not threading.main_thread():
                return run(session, fetches, *args, **kwargs)
            if session.graph not in self.graphs:
                self.graphs.append(session.graph)
            losses = [] if self._depth or hooked else self._losses_of(fetches)
            self._depth += 1
            try:
                result = run(session, [fetches, losses] if losses else fetches, *args, **kwargs)
            finally:
                self._depth -= 1
            result, losses = result if losses else (result, [])
            if self._depth == 0:
                found = [*_numbers(fetched(result)), *(float(np.mean(loss)) for loss in losses)]
                if found:
                    self.runs.append(found)
                if self._limit is not None and len(self.runs) >= self._limit:
                    raise SystemExit(0)
            return result

        return recorded

    def _losses_of(self, fetches):
        """Returns the losses of the training operations among fetches, unless they are fetched as well."""
        asked = [] if isinstance(fetches, dict) and "caller" in fetches else list(_leaves(fetches))
        found = [self._losses[_op(fetch)] for fetch in asked if _op(fetch) in self._losses]
        return [loss for loss in found if not any(loss is fetch for fetch in asked)]

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


def _leaves(fetches):
    """Yields what is fetched, out of lists and dicts."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for part in fetches:
            yield from _leaves(part)
    else:
        yield fetches


def _op(fetch):
    """Returns the operation of a tensor; operations and names are returned as they are."""
    return getattr(fetch, "op", fetch) if not isinstance(fetch, str) else fetch


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
