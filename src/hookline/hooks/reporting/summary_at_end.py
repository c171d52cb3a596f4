"""SummaryAtEndHook: writes summaries once, at the end of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hookline import arguments, log
from hookline.errors import END_OF_INPUT
from hookline.graph import GraphKeys, Tensor
from hookline.hooks.base import SessionRunHook
from hookline.hooks.lookup import check_summary_writer, require_global_step
from hookline.session import Session
from hookline.summary import FileWriter, FileWriterCache

_logger = log.get_logger(__name__)


class SummaryAtEndHook(SessionRunHook):
    """Evaluates summaries when the session ends, and writes them with the global step of the checkpoint.

    Callbacks: `begin`, `end`; after an exception nothing is evaluated.

    Args:
        log_dir: The directory of the event file; all hooks with this directory share one writer. If it is below the
            training's directory, such as `runs/a/eval`, TensorBoard shows the curves of both.
        summary_writer: A writer to use instead of `log_dir`.
        summary_op: A tensor of a serialized `Summary`, or a list of them; by default all summaries of the graph.
        feed_dict: Feeds for that run.

    Raises:
        ValueError: Not exactly one of `log_dir` and `summary_writer` is given.

    Example:
        >>> SummaryAtEndHook()
        Traceback (most recent call last):
        ...
        ValueError: SummaryAtEndHook requires exactly one of log_dir or summary_writer, got neither.

    References:
        `tf.contrib.training.SummaryAtEndHook`, which creates a missing global step. Here the graph must have one.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        summary_writer: FileWriter | None = None,
        summary_op: Tensor | list[Tensor] | None = None,
        feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        if (log_dir is None) == (summary_writer is None):
            found = "neither" if log_dir is None else "both"
            raise ValueError(f"SummaryAtEndHook requires exactly one of log_dir or summary_writer, got {found}.")
        arguments.check_optional("SummaryAtEndHook", "feed_dict", feed_dict, Mapping)
        self._log_dir = arguments.check_path("SummaryAtEndHook", "log_dir", log_dir, optional=True)
        check_summary_writer("SummaryAtEndHook", summary_writer)
        self._writer = summary_writer
        self._summary_op = summary_op
        self._feed_dict = feed_dict

    def begin(self) -> None:
        """Opens the writer."""
        require_global_step(self)
        if self._log_dir is not None:
            self._writer = FileWriterCache.get(self._log_dir)

    def end(self, session: Session) -> None:
        """Evaluates and writes the summaries.

        Raises:
            OutOfRangeError, StopIteration: A summary reads an input that has ended.
        """
        summaries = self._summary_op
        if summaries is None:
            summaries = session.graph.get_collection(GraphKeys.SUMMARIES)
        try:
            values = session.run(
                list(summaries) if isinstance(summaries, list | tuple) else [summaries], self._feed_dict
            )
        except END_OF_INPUT:
            _logger.warning(
                "SummaryAtEndHook met the end of the input: a summary read a batch, but none is left when a session "
                "ends. Summarise variables that the runs have summed up, or feed the inputs of the summaries."
            )
            raise
        assert self._writer is not None, "begin has opened it"
        for serialized in values:
            self._writer.add_summary(serialized, session.global_step)
        self._writer.flush()
