"""FinalOpsHook: evaluates operations once, at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline import arguments, log
from hookline.errors import END_OF_INPUT
from hookline.hooks.base import SessionRunHook
from hookline.session import Session

_logger = log.get_logger(__name__)


class FinalOpsHook(SessionRunHook):
    """Evaluates `final_ops` when the session ends, and keeps the values.

    Callbacks: `begin`, `end`; after an exception nothing is evaluated.

    Args:
        final_ops: Any structure that a session can fetch.
        final_ops_feed_dict: Feeds for that run.

    Example:
        >>> hook = FinalOpsHook({"accuracy": "accuracy:0"})
        >>> hook.final_ops_values is None
        True

    References:
        `tf.train.FinalOpsHook`.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._final_ops = final_ops
        self._feed_dict = arguments.check_mapping(
            "FinalOpsHook", "final_ops_feed_dict", final_ops_feed_dict, optional=True
        )
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The values of `final_ops`, in their structure; None before the session has ended."""
        return self._values

    def begin(self) -> None:
        """Drops the values of an earlier session."""
        self._values = None

    def end(self, session: Session) -> None:
        """Evaluates the operations.

        Raises:
            OutOfRangeError, StopIteration: One of `final_ops` reads an input that has ended.
        """
        if self._final_ops is None:
            return
        try:
            self._values = session.run(self._final_ops, feed_dict=self._feed_dict)
        except END_OF_INPUT:
            _logger.warning(
                "FinalOpsHook met the end of the input: final_ops read a batch, but none is left when a session ends. "
                "Let final_ops depend on variables only, or feed their inputs."
            )
            raise
