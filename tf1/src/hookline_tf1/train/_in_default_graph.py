"""Names of `hookline.train` that use the default graph, and first make it a `tf.Graph`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hookline import train as core
from hookline_tf1._machinery.graphs import get_default_graph

Args = ParamSpec("Args")
Result = TypeVar("Result")


def in_default_graph(fn: Callable[Args, Result]) -> Callable[Args, Result]:
    """Wraps a function to create a `tf.Graph` first: in a script's first call, hookline would create a plain graph."""

    @functools.wraps(fn)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        get_default_graph()
        return fn(*args, **kwargs)

    return call


create_global_step = in_default_graph(core.create_global_step)
get_or_create_global_step = in_default_graph(core.get_or_create_global_step)
MonitoredTrainingSession = in_default_graph(core.MonitoredTrainingSession)


class SessionManager(core.SessionManager):
    """Initialises a model, restores it from a checkpoint, or waits for another process to do so.

    References:
        `tf.train.SessionManager`.
    """

    __init__ = in_default_graph(core.SessionManager.__init__)
