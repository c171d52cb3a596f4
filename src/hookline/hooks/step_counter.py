"""StepCounterHook: the number of steps per second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline import arguments, summary
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.cadence import DefaultSteps, chosen_trigger
from hookline.hooks.lookup import check_writer, require_global_step
from hookline.hooks.trigger import Trigger
from hookline.summary import FileWriter, FileWriterCache, encode

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

_EVERY_N_STEPS = DefaultSteps(100)


class StepCounterHook(SessionRunHook):
    """Writes and logs the steps per second, at a cadence.

    The tag is `<name of the global step>/sec`. The first firing writes nothing, because it only starts the measurement;
    the same holds for the first firing after a recovery that moved the step back. Runs `begin`, `after_create_session`,
    `on_trigger` and `end`, which flushes; nothing after an exception.

    To record something else, override `record`.

    Args:
        every_n_steps: Global steps from one firing to the next. Pass None to use `every_n_secs`.
        every_n_secs: Seconds from one firing to the next.
        trigger: Says when to fire, instead of both.
        output_dir: Where to write; all hooks with this directory share one writer.
        summary_writer: A writer to use instead of `output_dir`. With neither, the rate is only logged.

    Attributes:
        trigger: Says when to fire.

    Raises:
        ValueError: Not exactly one cadence.

    Example:
        >>> StepCounterHook(every_n_secs=60)
        Traceback (most recent call last):
        ...
        ValueError: StepCounterHook requires exactly one of every_n_steps (100 unless you pass None), every_n_secs ...

    References:
        `tf.train.StepCounterHook`. Differences: rates are never negative; it needs no run of its own; the session
        says that the step does not move; `trigger`; `record`.
    """

    _renamed = (("_log_and_record", "record"),)

    def __init__(
        self,
        every_n_steps: int | None = _EVERY_N_STEPS,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        *,
        trigger: Trigger | None = None,
    ) -> None:
        self.trigger = chosen_trigger(
            "StepCounterHook", trigger, ("every_n_steps", every_n_steps), ("every_n_secs", every_n_secs)
        )
        self._output_dir = arguments.path("StepCounterHook", "output_dir", output_dir, optional=True)
        check_writer("StepCounterHook", summary_writer)
        self._given_writer = summary_writer
        if self._output_dir and summary_writer is None:
            self.writes = f"the steps per second, events in '{self._output_dir}'"
        self._writer = summary_writer
        self._tag = ""

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer; None if there is none, and with `output_dir` before `begin`."""
        return self._writer

    @property
    def tag(self) -> str:
        """The tag: the name of the global step and `/sec`; empty before `begin`."""
        return self._tag

    def record(self, elapsed_steps: int, elapsed_secs: float, global_step: int) -> None:
        """Logs and writes the steps per second. Override it to record something else, or more.

        Args:
            elapsed_steps: Global steps since the last time.
            elapsed_secs: Seconds since then; more than 0.
            global_step: The global step now.

        Example:
            >>> class ExamplesPerSecond(StepCounterHook):
            ...     def record(self, elapsed_steps, elapsed_secs, global_step):
            ...         print(f"{32 * elapsed_steps / elapsed_secs:.0f} examples/sec at step {global_step}")
            >>> ExamplesPerSecond().record(elapsed_steps=100, elapsed_secs=2.0, global_step=200)
            1600 examples/sec at step 200
        """
        rate = elapsed_steps / elapsed_secs
        _logger.info("%s: %g", self._tag, rate)
        if self._writer is not None:
            # A writer of the user's may look into a message, as in TF 1.x; the bytes alone are made in less time.
            serialized = encode.scalar(self._tag, rate)
            own = type(self._writer) is FileWriter
            self._writer.add_summary(serialized if own else summary.Summary.FromString(serialized), global_step)

    def begin(self) -> None:
        """Opens the writer and names the tag."""
        self._tag = f"{require_global_step(self).op.name}/sec"
        if self._given_writer is None and self._output_dir:
            self._writer = FileWriterCache.get(self._output_dir)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Has the session say when the global step does not move."""
        session.lowlevel.expects_steps = True

    def on_trigger(self, firing: Firing) -> None:
        """Writes the rate, if it is known since when."""
        if firing.elapsed_secs and firing.elapsed_steps is not None and firing.global_step is not None:
            self.record(firing.elapsed_steps, firing.elapsed_secs, firing.global_step)

    def end(self, session: Session) -> None:
        """Flushes the writer."""
        if self._writer is not None:
            self._writer.flush()
