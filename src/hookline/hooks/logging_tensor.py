"""LoggingTensorHook: prints values to the log at a cadence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.errors import END_OF_INPUT
from hookline.graph import Tensor
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.cadence import Foresight, chosen_trigger
from hookline.hooks.late_values import LateValues
from hookline.hooks.lookup import find_tensor, require_global_step, tagged
from hookline.hooks.timers import NeverTriggerTimer
from hookline.hooks.triggers import NEVER, Trigger

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import LateResults, Session

_logger = logging.getLogger(__name__)

_ARRAYS = (np.generic, np.ndarray, jax.Array)


class LoggingTensorHook(SessionRunHook):
    """Logs the values of tensors at INFO: on the first run, and then at a cadence of local runs or of seconds.

    The values are asked for on the runs that are logged, and on no other, and are logged when they have arrived: on a
    later run, before the next checkpoint, or at the end. The training does not wait for them. Numbers print without
    scientific notation. Runs `begin`, `after_create_session`, `before_run`, `after_run`, `settle` and `end`; after an
    exception what has arrived is logged.

    To make another line, give a `formatter` or override `format_line`; to put the values elsewhere, override `log`.

    Args:
        tensors: What to log: a dict from tag to tensor or name, logged in the order of the tags, or an iterable of
            tensors and names, which are their own tags. The name `"loss"` means the tensor `"loss:0"`.
        every_n_iter: Runs of this session from one line to the next; the global step does not matter.
        every_n_secs: Seconds from one line to the next.
        at_end: Whether to log once more when the session ends; alone, or added to a cadence.
        formatter: Makes the line, from a dict of tags to values.
        trigger: Says on which global steps (not runs), or at which times, to log, in place of both cadences.

    Attributes:
        trigger: Says when.

    Raises:
        TypeError: `tensors` is no dict and no list, or a cadence no number.
        ValueError: Nothing to log, no cadence and not `at_end`, two cadences, or one out of range.

    Example:
        >>> hook = LoggingTensorHook({"loss": "loss:0"}, every_n_iter=100)
        >>> LoggingTensorHook(["loss"], every_n_iter=0)
        Traceback (most recent call last):
        ...
        ValueError: LoggingTensorHook requires every_n_iter >= 1, got 0.

    References:
        `tf.train.LoggingTensorHook`. Differences: a scalar, too, prints without scientific notation; a tensor in an
        iterable has its name as tag; the end of the input in the last line is a warning; `trigger`; `format_line`
        and `log`.
    """

    _renamed = (("_log_tensors", "log"),)

    def __init__(
        self,
        tensors: Mapping[str, Tensor | str] | Iterable[Tensor | str],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
        *,
        trigger: Trigger | None = None,
    ) -> None:
        self.trigger = _chosen(every_n_iter, every_n_secs, at_end, trigger)
        # Of what the cadence counts: runs of this session, unless a trigger was given, which knows global steps.
        self._foresight = Foresight() if trigger is not None else None
        self._counts_runs = every_n_iter is not None
        self._tensors = tagged("LoggingTensorHook", tensors)
        if isinstance(tensors, Mapping):
            self._tensors = dict(sorted(self._tensors.items()))
        if not self._tensors:
            raise ValueError("LoggingTensorHook requires a tensor or more to log, got none.")
        self._at_end = at_end
        self._formatter = arguments.function("LoggingTensorHook", "formatter", formatter, optional=True)
        kind = type(self)
        overridden = kind.log is not LoggingTensorHook.log or kind.format_line is not LoggingTensorHook.format_line
        self._writes_own_lines = not overridden and formatter is None
        self._args = SessionRunArgs(None)
        self._late = LateValues(self._log)
        self._runs = self._next_run = 0

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        """Returns the line for the log. Override it to make another.

        Args:
            values: By tag, in the order in which they are logged.
            elapsed_secs: Seconds since the last line; None for the first one.

        Example:
            >>> class Short(LoggingTensorHook):
            ...     def format_line(self, values, elapsed_secs):
            ...         return " ".join(f"{tag}={value:.1f}" for tag, value in values.items())
            >>> Short({"loss": "loss:0"}, every_n_iter=100).format_line({"loss": 0.25}, elapsed_secs=None)
            'loss=0.2'
        """
        if self._formatter is not None:
            try:
                return self._formatter(values)
            except Exception as error:
                error.add_note(f"The formatter of a LoggingTensorHook failed, given a dict of {', '.join(values)}.")
                raise
        line = ", ".join(f"{tag} = {_text(value)}" for tag, value in values.items())
        return line if elapsed_secs is None else f"{line} ({elapsed_secs:.3f} sec)"

    def log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        """Logs values that have arrived. Override it to put them elsewhere; the arguments are those of `format_line`.

        Example:
            >>> class Keeping(LoggingTensorHook):
            ...     kept = []
            ...     def log(self, values, elapsed_secs):
            ...         self.kept.append(values)
        """
        _logger.info("%s", self.format_line(values, elapsed_secs))

    def begin(self) -> None:
        """Looks the tensors up.

        Raises:
            KeyError: One of them is not in the graph.
        """
        tensors = {tag: find_tensor(self, item) for tag, item in self._tensors.items()}
        # A subclass with an after_run of its own reads the results themselves.
        self._args = SessionRunArgs(tensors, late=type(self).after_run is LoggingTensorHook.after_run)
        self.trigger.reset()
        self._runs = self._next_run = 0
        if self._foresight is not None:
            require_global_step(self)
            self._foresight = Foresight()

    def may_fetch(self) -> Any:
        """Returns the tensors."""
        return self._args.fetches

    def get_state(self) -> dict[str, Any]:
        """Returns the phase of its trigger."""
        return {"trigger": self.trigger.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keeps the phase of a trigger over a restart."""
        self.trigger.set_state(state["trigger"])

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Moves a trigger back with a session that was restored from an earlier step."""
        self._late.salvage()
        if self._foresight is not None:
            self._foresight.start(session)
            self.trigger.start(session.global_step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Asks for the values if this run is to be logged."""
        if run_context.runs > self._next_run:  # There were some that it was not called on.
            self._runs += run_context.runs - self._next_run
        self._next_run = run_context.runs
        step = self._runs if self._foresight is None else self._foresight.step_after(run_context.session)
        return self._args if self.trigger.should_trigger_for_step(step) else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Logs what has arrived."""
        step = self._runs
        if self._foresight is not None:
            step = run_context.session.global_step
            self._foresight.learn(step)
        # Asked anew, for the run may have gained less than was foreseen.
        if run_values.results is not None and self.trigger.should_trigger_for_step(step):
            elapsed_secs, _ = self.trigger.update_last_triggered_step(step)
            self._late.add(run_values.results, elapsed_secs)
        self._late.write_ready()
        self._runs, self._next_run = self._runs + 1, run_context.runs + 1

    def settle(self, session: Session) -> None:
        """Logs what has not arrived yet."""
        self._late.write_all()

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Logs what has arrived."""
        self._late.salvage()

    def end(self, session: Session) -> None:
        """Logs once more, if `at_end`."""
        self._late.write_all()
        if not self._at_end:
            return
        try:
            values = session.run(self._args.fetches)
        except END_OF_INPUT:
            _logger.warning(
                "LoggingTensorHook cannot log %s at the end: it reads a batch, and the input is at its end.",
                ", ".join(self._tensors),
            )
            return
        step = self._runs if self._foresight is None else session.global_step
        self._log(values, self.trigger.update_last_triggered_step(step)[0])

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns when the next line is due; where it counts runs, steps do not matter."""
        return NEVER if self._counts_runs else self.trigger.steps_until_trigger(global_step)

    def runs_until_trigger(self) -> int:
        """Returns when the next line is due, where it counts runs."""
        return self.trigger.steps_until_trigger(self._runs - 1) if self._counts_runs else NEVER

    def waits_for(self) -> LateResults | None:
        """Returns the values that are logged next."""
        return self._late.first

    def secs_until_trigger(self) -> float:
        """Returns the seconds until the next line is due."""
        return self.trigger.secs_until_trigger()

    def _log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        chosen = {tag: values[tag] for tag in self._tensors}
        own = self.__dict__  # Somebody may have set a function on this hook alone.
        if self._writes_own_lines and "log" not in own and "format_line" not in own:
            self.log(chosen, elapsed_secs)
            return
        with np.printoptions(suppress=True):
            self.log(chosen, elapsed_secs)


def _chosen(every_n_iter: int | None, every_n_secs: float | None, at_end: bool, trigger: Trigger | None) -> Trigger:
    if at_end and every_n_iter is None and every_n_secs is None and trigger is None:
        return NeverTriggerTimer()
    if every_n_iter is None and every_n_secs is None and trigger is None:
        raise ValueError("LoggingTensorHook requires every_n_iter, every_n_secs, trigger or at_end=True, got none.")
    return chosen_trigger("LoggingTensorHook", trigger, ("every_n_iter", every_n_iter), ("every_n_secs", every_n_secs))


def _text(value: Any) -> str:
    """Returns a value as text; array leaves of a structure as they print alone."""
    if _is_scalar(value):
        return _leaf_text(value)
    # Only here: setting the options takes longer than writing a line of numbers.
    with np.printoptions(suppress=True):
        leaves, structure = jax.tree.flatten(value)
        texts = [_Verbatim(_leaf_text(leaf)) for leaf in leaves]
        return repr(jax.tree.unflatten(structure, texts))


class _Verbatim(str):
    """A text that shows without quotes inside a container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, _ARRAYS) and value.shape == ())


def _leaf_text(leaf: Any) -> str:
    # The print options of NumPy cover neither scalars nor arrays whose values are far apart.
    dtype = np.dtype(float) if isinstance(leaf, float) else getattr(leaf, "dtype", None)
    if dtype is None or not (getattr(dtype, "kind", None) == "f" or jnp.issubdtype(dtype, jnp.floating)):
        return str(leaf)
    array = np.asarray(leaf)
    if isinstance(number := array[()], np.floating):
        # NumPy's own function takes ten times as long as `str`, which gives the same digits.
        text = str(number)
        if "e" not in text:
            return text
        text = format(Decimal(text), "f")
        return text if "." in text else f"{text}.0"
    if not issubclass(array.dtype.type, np.floating):  # bfloat16 and its like, which NumPy cannot format
        array = array.astype(np.float32)
    return np.array2string(array, formatter={"float_kind": _positional})


def _positional(number: Any) -> str:
    return np.format_float_positional(number, trim="0")
