"""StalenessHook: logs and writes the staleness of a worker's updates."""

from __future__ import annotations

from hookline import log, summary
from hookline.coordination import Coordinator
from hookline.graph import get_global_step
from hookline.hooks import Firing, SessionRunHook, Trigger
from hookline.hooks.timers import DefaultSteps, trigger_from_arguments
from hookline.session import Session
from hookline.summary import FileWriter
from hookline.summary.writer_cache import get_writer

_logger = log.get_logger(__name__)

_EVERY_N_STEPS = DefaultSteps(100)


class StalenessHook(SessionRunHook):
    """Writes and logs the mean and maximum staleness of this worker's updates, every few steps or seconds.

    The staleness of an update is the number of updates of other workers that were applied after its values were pulled
    and before it was applied itself (with `overlap`, it includes this worker's last update). The tags are
    `staleness/worker_<n>/mean` and `/max`, where n is the worker's task index (`staleness/chief/...` on the chief);
    they cover the updates since the last firing. Without a global step, and in a session whose variables are not
    shared, it does nothing. Runs `begin`, `after_create_session`, `on_trigger` and `end`, which reports the remaining
    updates; nothing after an exception.

    Args:
        every_n_steps: Global steps from one firing to the next. Pass None to use `every_n_secs`.
        every_n_secs: Seconds from one firing to the next.
        trigger: The trigger, instead of both.
        output_dir: The directory to write to; all hooks with this directory share one writer.
        summary_writer: A writer to use instead of `output_dir`. With neither, the staleness is only logged.

    Attributes:
        trigger: The trigger.

    Raises:
        ValueError: There is not exactly one cadence.

    Example:
        >>> hook = StalenessHook(every_n_steps=None, every_n_secs=60)

    References:
        None in `tf.train`, which does not report staleness.
    """

    def __init__(
        self,
        every_n_steps: int | None = _EVERY_N_STEPS,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        *,
        trigger: Trigger | None = None,
    ) -> None:
        self.trigger = self._given_trigger = trigger_from_arguments(
            "StalenessHook", trigger, ("every_n_steps", every_n_steps), ("every_n_secs", every_n_secs)
        )
        self._output_dir = output_dir
        self._given_writer = summary_writer
        self._writer = summary_writer

    def begin(self) -> None:
        """Opens the writer."""
        self._has_step = get_global_step() is not None
        if self._given_writer is None:
            self._writer = get_writer(self._output_dir)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Enables the trigger if the session's variables are shared, so that updates have a staleness."""
        self.trigger = self._given_trigger if self._has_step and session.backend.shared else None

    def on_trigger(self, firing: Firing) -> None:
        """Reports the staleness since the last firing."""
        self._report(firing.context.session)

    def end(self, session: Session) -> None:
        """Reports the staleness since the last firing, and flushes the writer."""
        if self._has_step and session.backend.shared:
            self._report(session)
        if self._writer is not None:
            self._writer.flush()

    def _report(self, session: Session) -> None:
        measure = getattr(session.backend.store, "staleness", None)
        count, mean, largest = measure() if measure is not None else (0, 0.0, 0)
        if not count:
            return
        index, step = session.backend.store.worker_index, session.global_step
        tag = f"staleness/worker_{index - 1}" if index else "staleness/chief"
        _logger.info("%s: mean %.2f, max %d, over %d local steps; global step %d.", tag, mean, largest, count, step)
        if self._writer is not None:
            values = [
                summary.Summary.Value(tag=f"{tag}/mean", simple_value=mean),
                summary.Summary.Value(tag=f"{tag}/max", simple_value=largest),
            ]
            self._writer.add_summary(summary.Summary(value=values), step)
