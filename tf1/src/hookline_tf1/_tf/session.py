"""Sessions that return NumPy values and can be a thread's default."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import jax
import numpy as np

import hookline as core
from hookline import SessionConfig
from hookline_tf1._machinery import default_session
from hookline_tf1._machinery.graphs import Graph, get_default_graph
from hookline_tf1._machinery.ignored_arguments import log_once


class Session(core.Session):
    """A session: `run` returns NumPy values; the caller may write to the arrays.

    Args:
        target: Where variables live; see `hookline.Session`.
        graph: The graph to run; by default the default graph.
        config: A `ConfigProto`, which has no effect, or a `hookline.SessionConfig`.

    Example:
        >>> import hookline_tf1 as tf
        >>> with tf.Session() as sess:
        ...     print(type(sess.run(tf.ones([]))).__name__)
        float32

    References:
        `tf.Session`.
    """

    def __init__(self, target: Any = "", graph: Any = None, config: Any = None) -> None:
        graph = get_default_graph() if graph is None else graph
        if isinstance(graph, core.Graph) and not isinstance(graph, Graph):
            raise TypeError(
                "tf.Session runs a tf.Graph, and was given a hookline.Graph: run it in a hookline.Session, or build it "
                "inside `with tf.Graph().as_default():`."
            )
        super().__init__(_local(target), graph, config if isinstance(config, SessionConfig) else None)
        if config is not None and not isinstance(config, SessionConfig):
            log_once("tf.ConfigProto")
        self._draws = itertools.count()
        self._blocks: list[contextlib.ExitStack] = []

    def next_draw(self) -> np.uint32:
        """Returns a number that is new in each run, for random operations."""
        return np.uint32(next(self._draws) % 2**32)

    @property
    def graph_def(self) -> str:
        """The listing of the session's graph."""
        return self.graph.as_text()

    @property
    def sess_str(self) -> str:
        """Where its variables live."""
        return ""

    def as_default(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this the default session inside the block; leaves it open afterwards."""
        return default_session.as_default(self)

    def list_devices(self) -> list[Any]:
        """Returns JAX's devices."""
        return jax.devices()

    def partial_run_setup(self, *args: Any, **kwargs: Any) -> Any:
        """Is refused: a run is one program."""
        raise NotImplementedError("Session.partial_run is not available: a run is one compiled program.")

    partial_run = partial_run_setup

    def __enter__(self) -> Session:
        super().__enter__()
        stack = contextlib.ExitStack()
        stack.enter_context(self.as_default())
        self._blocks.append(stack)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._blocks.pop().close()
        super().__exit__(*exc_info)


class InteractiveSession(Session):
    """A session that is the default session until it is closed.

    References:
        `tf.InteractiveSession`.
    """

    def __init__(self, target: Any = "", graph: Any = None, config: Any = None) -> None:
        super().__init__(target, graph, config)
        self._opened = contextlib.ExitStack()
        if graph is not None:
            self._opened.enter_context(graph.as_default())
        self._opened.enter_context(self.as_default())

    def close(self) -> None:
        """Closes the session, so another session is the default again."""
        self._opened.close()
        super().close()


def _local(target: Any) -> Any:
    """Returns the target; an empty string for `local` or None, which mean this process."""
    return "" if target in ("local", None) else target
