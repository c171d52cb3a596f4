"""LoggingTensorHook: prints values to the log at a cadence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.errors import END_OF_INPUT
from hookline.graph import Tensor
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import find_tensor
from hookline.hooks.timers import NeverTriggerTimer, SecondOrStepTimer, Timer

if TYPE_CHECKING:
    from hookline.session import Session

_logger = logging.getLogger(__name__)


class LoggingTensorHook(SessionRunHook):
    """Logs the values of tensors at INFO: on the first run, and then at a cadence of local runs or of seconds.

    The values are asked for on the runs that are logged, and on no other. Numbers print without scientific notation.
    Runs `begin`, `before_run`, `after_run` and `end`; nothing after an exception.

    Args:
        tensors: What to log: a dict from tag to tensor or name, logged in the order of the tags, or an iterable of
            tensors and names, which are their own tags. The name `"loss"` means the tensor `"loss:0"`.
        every_n_iter: Runs of this session from one line to the next; the global step does not matter.
        every_n_secs: Seconds from one line to the next.
        at_end: Whether to log once more when the session ends; alone, or added to a cadence.
        formatter: Makes the line, from a dict of tags to values.

    Raises:
        TypeError: `tensors` is no dict and no list, or a cadence no number.
        ValueError: Nothing to log, no cadence and not `at_end`, two cadences, or one out of range.

    Example:
        >>> hook = LoggingTensorHook({"loss": "loss:0"}, every_n_iter=100)
        >>> LoggingTensorHook(["loss"], every_n_iter=0)
        Traceback (most recent call last):
        ...
        ValueError: LoggingTensorHook requires every_n_iter > 0, got 0.

    References:
        `tf.train.LoggingTensorHook`. Differences: a scalar, too, prints without scientific notation; a tensor in an
        iterable has its name as tag; the end of the input in the last line is a warning.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor | str] | Iterable[Tensor | str],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        self._timer = _timer(every_n_iter, every_n_secs, at_end)
        if isinstance(tensors, str | Tensor) or not isinstance(tensors, Iterable):
            raise TypeError(
                f"LoggingTensorHook requires a dict or a list of tensors, got {tensors!r}. Put it in a list."
            )
        self._tensors: dict[str, Tensor | str]
        if isinstance(tensors, Mapping):
            tagged = cast("Mapping[str, Tensor | str]", tensors)  # isinstance alone cannot tell what the keys are
            self._tensors = {tag: tagged[tag] for tag in sorted(tagged)}
        else:
            self._tensors = {item if isinstance(item, str) else item.name: item for item in tensors}
        if not self._tensors:
            raise ValueError("LoggingTensorHook requires a tensor or more to log, got none.")
        self._at_end = at_end
        self._formatter = formatter
        self._args = SessionRunArgs(None)
        self._runs = 0

    def begin(self) -> None:
        """Looks the tensors up.

        Raises:
            KeyError: One of them is not in the graph.
        """
        self._args = SessionRunArgs({tag: find_tensor(self, item) for tag, item in self._tensors.items()})
        self._timer.reset()
        self._runs = 0

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Asks for the values if this run is to be logged."""
        return self._args if self._timer.should_trigger_for_step(self._runs) else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Logs what was asked for."""
        if run_values.results is not None:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: Session) -> None:
        """Logs once more, if `at_end`."""
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
        self._log(values)

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns 1, for it counts runs; `NEVER` with `at_end` alone."""
        return self._timer.steps_until_trigger(self._runs) if isinstance(self._timer, NeverTriggerTimer) else 1

    def _log(self, values: dict[str, Any]) -> None:
        elapsed_secs, _ = self._timer.update_last_triggered_step(self._runs)
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                line = self._formatter(values)
            else:
                line = ", ".join(f"{tag} = {_text(values[tag])}" for tag in self._tensors)
                if elapsed_secs is not None:
                    line += f" ({elapsed_secs:.3f} sec)"
        _logger.info("%s", line)


def _timer(every_n_iter: int | None, every_n_secs: float | None, at_end: bool) -> Timer:
    if every_n_iter is not None and every_n_secs is not None:
        raise ValueError("LoggingTensorHook requires at most one of every_n_iter or every_n_secs, got both.")
    if every_n_iter is not None and arguments.whole("LoggingTensorHook", "every_n_iter", every_n_iter) <= 0:
        raise ValueError(f"LoggingTensorHook requires every_n_iter > 0, got {every_n_iter}.")
    if every_n_secs is not None:
        arguments.number("LoggingTensorHook", "every_n_secs", every_n_secs, at_least=0)
    if every_n_iter is not None or every_n_secs is not None:
        return SecondOrStepTimer(every_steps=every_n_iter, every_secs=every_n_secs)
    if not at_end:
        raise ValueError("LoggingTensorHook requires every_n_iter, every_n_secs or at_end=True, got none.")
    return NeverTriggerTimer()


def _text(value: Any) -> str:
    """Returns a value as text; array leaves of a structure as they print alone."""
    leaves, structure = jax.tree.flatten(value)
    texts = [_Verbatim(_leaf_text(leaf)) for leaf in leaves]
    return repr(jax.tree.unflatten(structure, texts))


class _Verbatim(str):
    """A text that shows without quotes inside a container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _leaf_text(leaf: Any) -> str:
    # The print options of NumPy cover neither scalars nor arrays whose values are far apart.
    dtype = np.dtype(float) if isinstance(leaf, float) else getattr(leaf, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return str(leaf)
    array = np.asarray(leaf)
    if not issubclass(array.dtype.type, np.floating):  # bfloat16 and its like, which NumPy cannot format
        array = array.astype(np.float32)
    return np.array2string(array, formatter={"float_kind": _positional})


def _positional(number: Any) -> str:
    return np.format_float_positional(number, trim="0")
