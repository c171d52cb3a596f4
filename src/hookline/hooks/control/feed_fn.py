"""FeedFnHook: feeds every run with the result of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline import arguments
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook
from hookline.signals.interrupts import calls_user_code


class FeedFnHook(SessionRunHook):
    """Adds the result of `feed_fn()` to the feeds of each run.

    Callback: `before_run`.

    Args:
        feed_fn: A function without arguments that returns a feed dict; called before each run. To end the training it
            may raise `StopIteration` or `OutOfRangeError`.

    Example:
        >>> batches = iter([{"x:0": 1.0}, {"x:0": 2.0}])
        >>> hook = FeedFnHook(lambda: next(batches))

    References:
        `tf.train.FeedFnHook`.
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self._feed_fn = arguments.check_callable("FeedFnHook", "feed_fn", feed_fn)

    @calls_user_code
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Returns the feed of this run."""
        return SessionRunArgs(None, feed_dict=self._feed_fn())
