"""ProgressHook: shows the progress of a training."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from hookline import arguments, clock, log
from hookline.coordination import Coordinator, process_group
from hookline.data.epochs import Epochs
from hookline.graph import Tensor
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.epochs import known_epochs
from hookline.hooks.lookup import by_tag, find_tensor, newest_saved_step, require_global_step
from hookline.hooks.reporting.progress_output import (
    CellLine,
    Progress,
    TerminalLine,
    is_notebook_cell,
    is_terminal,
    make_renderer,
)
from hookline.hooks.reporting.step_counter import checked_per_step
from hookline.hooks.timers import trigger_from_arguments
from hookline.hooks.trigger import NEVER, Trigger
from hookline.hooks.triggers import FirstRun, first_then_every
from hookline.session import Session

_logger = log.get_logger(__name__)

_EVERY_SECS = 10.0
_DRAW_EVERY_SECS = 0.2
_RATE_OVER_SECS = 30.0
# Below it, most of the time is that from the device's end of a step to this hook: 20 steps in 0.3 ms.
LEAST_RATE_SECS = 1.0
_RUNS_THAT_COMPILE = 2


class ProgressHook(SessionRunHook):
    """Shows the step and the last step, the epoch, chosen values, the last save, the steps per second and time left.

    - On a terminal, one line at the bottom is redrawn five times a second, with a bar if the last step is
      known. Log lines and `print` appear above it.
    - In a notebook, one output of the cell, with a bar and a curve of the first value (the loss of a `train.Loop`), is
      updated five times a second. The notebook keeps its last state.
    - Elsewhere (a file, a pipe, a task of `hookline launch`, which writes the task's name before each line), a plain
      line is printed at the first step, then every `every_secs` seconds, and at the last step.

    The training does not wait: a step is shown once the device has computed its values. Values are fetched only in the
    runs that are shown, and in the third run, because by then both programs (with and without values) are compiled. The
    steps per second are measured from the third run on: over the last 30 seconds, or since the last line if that is
    longer; in the first second they are not shown. If the output fails (a closed pipe), a warning is logged once, and
    the training continues. After an end that was not foreseen, the last line has the newest values and their step.

    Callbacks: `begin`, `after_create_session`, `on_trigger`, `end`, and `on_exception`, which ends the line.

    Args:
        values: The values beside the step: a dict from tag to tensor or name, or an iterable of tensors and names,
            whose names are the tags. They should be scalars; `"loss"` means the tensor `"loss:0"`.
        last_step: The last step of the training; by default the step of `StopAtStepHook`, or of another hook's
            `session.set_last_step`, or in a `train.Loop` the end of the data if that comes first.
        every_secs: Seconds from one plain line to the next; 10 by default.
        trigger: Decides when plain lines are due, instead of `every_secs`.
        file: The output; by default `sys.stdout` as it is at `begin`.
        per_step: The counts in one step, by name: with `{"examples": 32}` the line also shows examples per second.

    Attributes:
        trigger: The trigger in use.

    Raises:
        TypeError: `values` is neither a dict nor a list, or another argument is of the wrong type.
        ValueError: Both `every_secs` and `trigger` are given, or a number is out of range.

    Example:
        >>> from hookline import train
        >>> train_op = train.get_or_create_global_step().assign_add(1)
        >>> hooks = [train.StopAtStepHook(last_step=3), ProgressHook({"step before": "global_step"})]
        >>> with train.MonitoredSession(hooks=hooks) as sess:
        ...     while not sess.should_stop():
        ...         _ = sess.run(train_op)
        step 1/3  33%  step before 0
        step 3/3  100%  step before 2

    References:
        None in `tf.train`. The progress bars of Keras and tqdm wait for the values each time.
    """

    deferred = True

    def __init__(
        self,
        values: Mapping[str, Tensor | str] | Iterable[Tensor | str] = (),
        last_step: int | None = None,
        *,
        every_secs: float | None = None,
        trigger: Trigger | None = None,
        file: TextIO | None = None,
        per_step: Mapping[str, float] | None = None,
    ) -> None:
        if last_step is not None:
            last_step = arguments.check_int("ProgressHook", "last_step", last_step, at_least=1)
        if every_secs is None and trigger is None:
            every_secs = _EVERY_SECS
        self.trigger = trigger_from_arguments(
            "ProgressHook", trigger, ("every_steps", None), ("every_secs", every_secs)
        )
        self._values = by_tag("ProgressHook", values)
        self._given_last_step = last_step
        self._session: Session | None = None
        self._given_file = arguments.check_has("ProgressHook", "file", file, "a file", "write", optional=True)
        self._per_step = checked_per_step("ProgressHook", per_step)
        self._display_trigger = self._given_trigger = self.trigger
        self._third_run = FirstRun(_RUNS_THAT_COMPILE + 1)
        self._display_triggers: list[Trigger] = []
        self._is_new = True
        # Times and their steps, oldest first.
        self._rate_window: collections.deque[tuple[float, int]] = collections.deque()
        self._shown_step = 0
        # Of the last run that has fetched them.
        self._newest_values: Mapping[str, Any] = {}
        self._values_step = 0
        self._output: _PlainLines | _TerminalBar | CellLine | None = None

    def begin(self) -> None:
        """Looks up the tensors, and checks whether the output is a terminal or a notebook.

        Raises:
            KeyError: A tensor is not in the graph.
            RuntimeError: The graph has no global step.
        """
        require_global_step(self)
        self.fetches = {tag: find_tensor(self, item) for tag, item in self._values.items()} or None
        file = sys.stdout if self._given_file is None else self._given_file
        # In all SPMD processes the hook fires at the same runs, whatever the chief's output is; only the chief writes.
        output: _PlainLines | _TerminalBar | CellLine = _PlainLines(file)
        if process_group.current() is None:
            output = CellLine() if is_notebook_cell(file) else _TerminalBar(file) if is_terminal(file) else output
        self._output = output if process_group.is_primary() else None
        self._is_new = True
        self._display_trigger = (
            self._given_trigger if isinstance(output, _PlainLines) else first_then_every(secs=_DRAW_EVERY_SECS)
        )

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Starts from the session's step, which may have been restored."""
        self._session = session
        if self._is_new:
            self._display_trigger.reset()  # A new session shows its first run, whatever phase was restored.
            self._is_new = False
        shows = self._display_trigger | _AtStep(lambda: self._last_step)
        self._display_triggers, self.trigger = shows.leaves(), shows | self._third_run
        self._shown_step, self._newest_values = session.global_step, {}
        self._rate_window.clear()

    @property
    def _last_step(self) -> int | None:
        if self._given_last_step is not None or self._session is None:
            return self._given_last_step
        limits = self._session.step_limit, None if self._epochs is None else self._epochs.last_step
        return min((step for step in limits if step is not None), default=None)

    @property
    def _epochs(self) -> Epochs | None:
        return None if self._session is None else known_epochs(self._session)

    def _epoch_text(self, step: int) -> str:
        """Returns the epoch, and the last one if it is known; nothing if that is the only one."""
        if self._epochs is None:
            return ""
        last = None if self._last_step is None else self._epochs.number_at(self._last_step)
        of_last = "" if last is None else f"/{last}"
        return "" if last == 1 else f"epoch {self._epochs.number_at(step)}{of_last}"

    def on_trigger(self, firing: Firing) -> None:
        """Shows the step and its values; in the third run it starts to measure the steps per second."""
        step = firing.global_step
        assert step is not None, "begin requires a global step"
        self._newest_values, self._values_step = firing.values or {}, step
        is_third = step == self._third_run.last_triggered_step()
        if is_third:
            self._rate_window.append((clock.monotonic(), step))
        if not is_third or any((part.last_triggered_step() or 0) >= step for part in self._display_triggers):
            self._show(step)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Ends the line, so that the traceback starts on a new one."""
        self._finish()

    def end(self, session: Session) -> None:
        """Shows the last step with the newest values, unless it is shown already or there was no run."""
        if self._third_run.has_run and session.global_step > self._shown_step:
            self._show(session.global_step, has_ended=True)
        self._finish()

    def _show(self, step: int, *, has_ended: bool = False) -> None:
        # After the last step a checkpoint follows, which the console names.
        is_last = has_ended or step == self._last_step
        saved_step = None if self._session is None or is_last else newest_saved_step(self._session)
        progress = Progress(
            step,
            self._last_step,
            self._newest_values,
            self._steps_per_sec(step),
            self._per_step,
            self._epoch_text(step),
            "" if saved_step is None else f"saved {saved_step}",
            has_ended,
            self._values_step,
        )
        self._shown_step = step
        self._write(lambda output: output.show(progress))

    def _finish(self) -> None:
        self._write(lambda output: output.finish())

    def _write(self, what: Callable[[_PlainLines | _TerminalBar | CellLine], None]) -> None:
        if self._output is None:
            return
        try:
            what(self._output)
        except (OSError, ValueError) as exc:  # A closed file, or characters that its encoding lacks.
            self._output = None
            _logger.warning(
                "ProgressHook shows no more progress, but the training continues: %s: %s", type(exc).__name__, exc
            )

    def _steps_per_sec(self, step: int) -> float | None:
        seen, now = self._rate_window, clock.monotonic()
        if not seen:
            return None
        seen.append((now, step))
        while len(seen) > 2 and seen[1][0] <= now - _RATE_OVER_SECS:
            seen.popleft()
        since_secs, since_step = seen[0]
        return (step - since_step) / (now - since_secs) if now - since_secs >= LEAST_RATE_SECS else None


class _AtStep(Trigger):
    """Fires at one step; the step may become known after the start."""

    def __init__(self, step: Callable[[], int | None]) -> None:
        self._step = step

    def next_step(self, after: int) -> int:
        step = self._step()
        return NEVER if step is None or step <= after else step


class _PlainLines:
    """Prints plain lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def show(self, progress: Progress) -> None:
        print(progress, file=self._file, flush=True)

    def finish(self) -> None:
        """Does nothing, because `show` ends each line."""


class _TerminalBar:
    """Draws one line of a terminal, from the first `show` to `finish`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._render = make_renderer(file)
        self._line: TerminalLine | None = None

    def show(self, progress: Progress) -> None:
        if self._line is None:
            self._line = TerminalLine(self._file)
        self._line.draw(self._render(progress, self._line.width))

    def finish(self) -> None:
        if self._line is not None:
            self._line.finish()
            self._line = None
