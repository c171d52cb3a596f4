"""SummarySaverHook: writes summaries for TensorBoard at a cadence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from hookline import arguments, log, summary
from hookline.coordination import Coordinator
from hookline.graph import Tensor
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.lookup import check_summary_writer, joined_names, require_global_step
from hookline.hooks.timers import trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.session import Session
from hookline.session.plan.fetches import iter_fetches
from hookline.summary import FileWriter
from hookline.summary.writer_cache import get_writer

_logger = log.get_logger(__name__)


class _HasSummaryOp(Protocol):
    @property
    def summary_op(self) -> Any: ...


class SummarySaverHook(SessionRunHook):
    """Fetches summaries on the first run and then at a cadence, and writes them with the global step after the run.

    Other runs do not compute the summaries. Summaries are written once they are computed: on a later run, before the
    next checkpoint, or at the end. So the training does not wait for them. Before the first run of each session the
    hook writes `SessionLog(START)` with the next step: TensorBoard then drops the points that a crashed run wrote at
    that step and later.

    Callbacks: `begin`, `after_create_session`, `on_trigger`, and `end`, which flushes. After an exception, summaries
    that are computed are still written.

    To fetch other summaries, override `get_summary_op`; to write them in another way, override `write`.

    Args:
        save_steps: Global steps from one firing to the next.
        save_secs: Seconds from one firing to the next.
        output_dir: The directory of the event file; all hooks with this directory share one writer.
        summary_writer: A writer to use instead of `output_dir`. With neither, nothing is written, and `begin` warns.
        scaffold: An object with a `summary_op`, which is read when the graph is final. If `summary_op` is None, nothing
            is written.
        summary_op: A tensor of a serialized `Summary`, or a list of them.
        trigger: Used instead of `save_steps` and `save_secs`, such as `every(100) | every(secs=60)`.

    Attributes:
        trigger: The trigger in use.
        output_dir, scaffold, summary_op: As given.
        summary_writer: The writer; None without one. With `output_dir` it is None before `begin`.

    Raises:
        ValueError: Not exactly one of `save_steps`, `save_secs` and `trigger` is given, or not exactly one of
            `scaffold` and `summary_op`.

    Example:
        >>> SummarySaverHook(save_steps=100, save_secs=60, summary_op="merged:0")
        Traceback (most recent call last):
        ...
        ValueError: SummarySaverHook requires exactly one of save_steps, save_secs or trigger, got save_steps, ...

    References:
        `tf.train.SummarySaverHook`. Differences: after a recovery the trigger keeps its phase, and START is written
        again; START is written before the first run (the reference writes it after that run, and so drops the points of
        hooks earlier in the list); `trigger`; `get_summary_op` and `write`.
    """

    deferred = True
    _opened_writer: FileWriter | None = None

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: _HasSummaryOp | None = None,
        summary_op: Tensor | list[Tensor] | None = None,
        *,
        trigger: Trigger | None = None,
    ) -> None:
        self.trigger = trigger_from_arguments(
            "SummarySaverHook", trigger, ("save_steps", save_steps), ("save_secs", save_secs)
        )
        if (scaffold is None) == (summary_op is None):
            found = "neither" if scaffold is None else "both"
            raise ValueError(f"SummarySaverHook requires exactly one of scaffold or summary_op, got {found}.")
        self.output_dir = arguments.check_path("SummarySaverHook", "output_dir", output_dir, optional=True)
        check_summary_writer("SummarySaverHook", summary_writer)
        arguments.check_has("SummarySaverHook", "scaffold", scaffold, "a Scaffold", "summary_op", optional=True)
        if self.output_dir and summary_writer is None:
            self.output_description = f"summaries, events in '{self.output_dir}'"
        self.summary_writer = summary_writer
        self.scaffold = scaffold
        self.summary_op = summary_op
        if summary_op is not None:
            self.state_key = joined_names(iter_fetches(summary_op))

    @property
    def _writes(self) -> bool:
        return self.summary_writer is not None or type(self).write is not SummarySaverHook.write

    def get_summary_op(self) -> list[Any] | None:
        """Returns the summaries to fetch: a list of tensors of serialized `Summary` messages, or None for none.

        Called once for each session that is created, when the graph is final. Override it to choose.

        Example:
            >>> class FirstOnly(SummarySaverHook):
            ...     def get_summary_op(self):
            ...         return super().get_summary_op()[:1]
            >>> FirstOnly(save_steps=100, summary_op=["loss:0", "histograms:0"]).get_summary_op()
            ['loss:0']
        """
        summary_op = self.scaffold.summary_op if self.scaffold is not None else self.summary_op
        if summary_op is None:
            return None
        return list(summary_op) if isinstance(summary_op, list | tuple) else [summary_op]

    def write(self, summaries: list[Any], global_step: int) -> None:
        """Writes summaries. Override it to write them elsewhere, or in another form.

        Args:
            summaries: Serialized `Summary` protocol buffers, in the order of `get_summary_op`.
            global_step: The global step after the run.

        Example:
            >>> class Sizes(SummarySaverHook):
            ...     def write(self, summaries, global_step):
            ...         print(global_step, [len(serialized) for serialized in summaries])
            >>> Sizes(save_steps=100, summary_op="merged:0").write([b"serialized"], global_step=100)
            100 [10]
        """
        if self.summary_writer is not None:
            for serialized in summaries:
                self.summary_writer.add_summary(serialized, global_step)

    def begin(self) -> None:
        """Opens the writer."""
        require_global_step(self)
        if self.summary_writer is None or self.summary_writer is self._opened_writer:  # Else it was given.
            self.summary_writer = self._opened_writer = get_writer(self.output_dir)
        if not self._writes:
            _logger.warning("SummarySaverHook writes nothing: it has neither output_dir nor summary_writer.")

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Looks up the summaries, and writes `SessionLog(START)`."""
        summaries = self.get_summary_op()
        if summaries is not None and not isinstance(summaries, list | tuple):
            raise TypeError(
                f"{type(self).__name__}.get_summary_op must return a list of summaries (or None), got {summaries!r}."
            )
        self.fetches = list(summaries) if summaries is not None and self._writes else None
        # Not after the first run: TensorBoard would drop the points that other hooks have written for that run.
        if self.summary_writer is not None:
            start = summary.SessionLog(status=summary.SessionLog.START)
            self.summary_writer.add_session_log(start, session.global_step + 1)

    def on_trigger(self, firing: Firing) -> None:
        """Writes the summaries, with the global step after their run."""
        if firing.values is not None and firing.global_step is not None:
            self.write(firing.values, firing.global_step)

    def steps_written(self, trigger: Trigger, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps on which the trigger fires; `end` only flushes."""
        return trigger.firing_steps(first, last)

    def end(self, session: Session) -> None:
        """Flushes the writer."""
        if self.summary_writer is not None:
            self.summary_writer.flush()
