"""LoggingTensorHook: logs values every N runs or seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments, log
from hookline.errors import END_OF_INPUT
from hookline.graph import Tensor
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.lookup import by_tag, find_tensor
from hookline.hooks.timers import NeverTriggerTimer, trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import every
from hookline.session import Session
from hookline.signals import interrupts

_logger = log.get_logger(__name__)

# A number beyond these is shown with an exponent: its zeros would hide its digits.
_SMALLEST_POSITIONAL, _LARGEST_POSITIONAL = 1e-10, 1e16


class LoggingTensorHook(SessionRunHook):
    """Logs the values of tensors at INFO: on the first run, then every `every_n_iter` runs or `every_n_secs` seconds.

    Runs are those of this process, not global steps. Only the logged runs fetch the values. A line is written once its
    values are computed: on a later run, before the next checkpoint, or at the end. So the training does not wait for
    the values. Numbers print without scientific notation.

    Callbacks: `begin`, `on_trigger`, `end`. After an exception, values that are already computed are
    still logged.

    To change the line, give a `formatter` or override `format_line`; to write the values elsewhere, override `log`.

    Args:
        tensors: A dict from tag to tensor or name, logged in alphabetical order of the tags, or an iterable of tensors
            and names, whose names are the tags. The name `"loss"` means the tensor `"loss:0"`.
        every_n_iter: Runs from one line to the next.
        every_n_secs: Seconds from one line to the next.
        at_end: Whether to log also when the session ends. Without `every_n_iter`, `every_n_secs` and `trigger` it logs
            only then.
        formatter: Makes the line from a dict of the values by tag.
        trigger: Used instead of `every_n_iter` and `every_n_secs`. `every(100)` counts global steps, `every(runs=100)`
            runs.

    Attributes:
        trigger: The trigger in use.
        tensors_by_tag: The tensors or names, in the order of the line.
        at_end, formatter: As given.

    Raises:
        TypeError: `tensors` is neither a dict nor a list, or `every_n_iter` or `every_n_secs` is not a number.
        ValueError: There is no tensor; more than one of `every_n_iter`, `every_n_secs` and `trigger` is given; none of
            them is, and `at_end` is False; or a number is out of range.

    Example:
        >>> hook = LoggingTensorHook({"loss": "loss:0"}, every_n_iter=100)
        >>> LoggingTensorHook(["loss"], every_n_iter=0)
        Traceback (most recent call last):
        ...
        ValueError: LoggingTensorHook requires every_n_iter >= 1, got 0.

    References:
        `tf.train.LoggingTensorHook`. Differences: scalars also print without scientific notation; a tensor in an
        iterable has its name as tag; if the input has ended, a warning replaces the line at the end; the argument
        `trigger` and the methods `format_line` and `log` are new.
    """

    trigger: Trigger
    deferred = True

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
        self.trigger = _choose_trigger(every_n_iter, every_n_secs, at_end, trigger)
        self.tensors_by_tag = by_tag("LoggingTensorHook", tensors)
        if isinstance(tensors, Mapping):
            self.tensors_by_tag = dict(sorted(self.tensors_by_tag.items()))
        if not self.tensors_by_tag:
            raise ValueError("LoggingTensorHook requires at least one tensor to log, got none.")
        self.state_key = ", ".join(self.tensors_by_tag)
        self.at_end = at_end
        self.formatter = arguments.check_callable("LoggingTensorHook", "formatter", formatter, optional=True)
        kind = type(self)
        overridden = kind.log is not LoggingTensorHook.log or kind.format_line is not LoggingTensorHook.format_line
        self._has_default_format = not overridden

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        """Returns the line for the log. Override it to change the line.

        Args:
            values: The values by tag, in the order of the line.
            elapsed_secs: Seconds since the last line; None for the first one.

        Example:
            >>> class Short(LoggingTensorHook):
            ...     def format_line(self, values, elapsed_secs):
            ...         return " ".join(f"{tag}={value:.1f}" for tag, value in values.items())
            >>> Short({"loss": "loss:0"}, every_n_iter=100).format_line({"loss": 0.25}, elapsed_secs=None)
            'loss=0.2'
        """
        if self.formatter is not None:
            try:
                with np.printoptions(suppress=True):
                    return interrupts.call_user_function(self.formatter, values)
            except Exception as error:
                error.add_note(f"The formatter of a LoggingTensorHook failed, given a dict of {', '.join(values)}.")
                raise
        line = ", ".join(f"{tag} = {_format_value(value)}" for tag, value in values.items())
        return line if elapsed_secs is None else f"{line} ({elapsed_secs:.3f} sec)"

    def log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        """Logs computed values. Override it to write them elsewhere. The arguments are as in `format_line`.

        Example:
            >>> class Keeping(LoggingTensorHook):
            ...     kept = []
            ...     def log(self, values, elapsed_secs):
            ...         self.kept.append(values)
        """
        _logger.info("%s", self.format_line(values, elapsed_secs))

    def begin(self) -> None:
        """Looks up the tensors.

        Raises:
            KeyError: A tensor is not in the graph.
        """
        self.fetches = {tag: find_tensor(self, item) for tag, item in self.tensors_by_tag.items()}

    def on_trigger(self, firing: Firing) -> None:
        """Logs the values."""
        values = {tag: firing.values[tag] for tag in self.tensors_by_tag}
        # The default line needs no print options, and to set them is slow. This instance may have its own methods, too.
        own = self.__dict__
        if self._has_default_format and "log" not in own and "format_line" not in own:
            self.log(values, firing.elapsed_secs)
            return
        with np.printoptions(suppress=True):
            self.log(values, firing.elapsed_secs)

    def end(self, session: Session) -> None:
        """Logs once more, if `at_end`."""
        if not self.at_end:
            return
        try:
            values = session.run(self.fetches)
        except END_OF_INPUT:
            _logger.warning(
                "LoggingTensorHook cannot log %s at the end: it reads a batch, but the input has ended.",
                ", ".join(self.tensors_by_tag),
            )
            return
        step = self.trigger.last_triggered_step() or 0
        elapsed_secs, _ = self.trigger.update_last_triggered_step(step)
        with np.printoptions(suppress=True):
            self.log({tag: values[tag] for tag in self.tensors_by_tag}, elapsed_secs)


def _choose_trigger(
    every_n_iter: int | None, every_n_secs: float | None, at_end: bool, trigger: Trigger | None
) -> Trigger:
    if at_end and every_n_iter is None and every_n_secs is None and trigger is None:
        return NeverTriggerTimer()
    if every_n_iter is None and every_n_secs is None and trigger is None:
        raise ValueError("LoggingTensorHook requires every_n_iter, every_n_secs, trigger or at_end=True, got none.")
    checked = trigger_from_arguments(
        "LoggingTensorHook", trigger, ("every_n_iter", every_n_iter), ("every_n_secs", every_n_secs)
    )
    # A number of steps would count global steps, and `every_n_iter` counts runs.
    return checked if every_n_iter is None else every(runs=every_n_iter)


def _format_value(value: Any) -> str:
    """Formats a value as text; arrays inside a structure print like arrays outside of one."""
    if not isinstance(value, float | np.generic | np.ndarray | jax.Array):
        leaves, structure = jax.tree.flatten(value)
        if not jax.tree_util.treedef_is_leaf(structure):
            with np.printoptions(suppress=True):
                return repr(structure.unflatten([_Verbatim(_format_value(leaf)) for leaf in leaves]))
    # NumPy's print options have no effect on scalars, or on arrays whose values differ by many orders of magnitude.
    dtype = np.dtype(float) if isinstance(value, float) else getattr(value, "dtype", None)
    if dtype is None or not (getattr(dtype, "kind", None) == "f" or jnp.issubdtype(dtype, jnp.floating)):
        if getattr(value, "shape", ()) == ():  # Setting the options takes longer than writing a line of numbers.
            return str(value)
        with np.printoptions(suppress=True):
            return str(value)
    array = np.asarray(value)
    if isinstance(number := array[()], np.floating):
        # NumPy's own function takes ten times as long as `str`, which gives the same digits.
        text = str(number)
        if "e" not in text or not _SMALLEST_POSITIONAL <= abs(number) < _LARGEST_POSITIONAL:
            return text
        text = format(Decimal(text), "f")
        return text if "." in text else f"{text}.0"
    if not issubclass(array.dtype.type, np.floating):  # NumPy cannot format bfloat16 and similar types.
        array = array.astype(np.float32)
    return np.array2string(array, formatter={"float_kind": _positional})


class _Verbatim(str):
    """A text that prints without quotes inside a container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _positional(number: Any) -> str:
    return np.format_float_positional(number, trim="0")
