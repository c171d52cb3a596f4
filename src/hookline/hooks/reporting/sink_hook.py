"""SinkHook: passes the summaries of a session's hooks to sinks."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hookline import arguments, clock, log
from hookline.coordination import Coordinator, process_group
from hookline.hooks.base import SessionRunHook
from hookline.hooks.lookup import require_global_step
from hookline.session import Session
from hookline.sinks.sink import KINDS, Sink
from hookline.sinks.sink_thread import SinkSet
from hookline.summary import FileWriterCache
from hookline.summary.writer_cache import WRITER_SCOPE

_logger = log.get_logger(__name__)

_PLAIN = bool | int | float | str | None


class SinkHook(SessionRunHook):
    """Passes the summaries of the session's hooks to sinks, and hyperparameters to sinks and TensorBoard.

    In a `Loop` and a `MonitoredTrainingSession`, `LoggingOptions(sinks=...)` adds this hook; in other sessions, pass it
    as a hook. The sinks get all summaries that are written with the writers of `FileWriterCache`, which hooks and
    `session.summary_writer` use. If a writer's directory is below `output_dir`, as an evaluation's, its tags begin with
    the directory's name. In SPMD processes only the chief writes.

    Callbacks: `begin`, `after_create_session`, which opens the sinks, `on_exception`, and `after_close`, which closes
    them.

    Args:
        sinks: The sinks. Each serves one session at a time.
        output_dir: The directory for summaries. With None, no hyperparameters are written for TensorBoard, and some
            sinks require their own path.
        hparams: Hyperparameters, in a dict, which may be nested, or a dataclass. The values are numbers, booleans,
            strings, None, and lists of them. Nested names are joined with slashes.

    Attributes:
        sinks: The sinks.

    Raises:
        TypeError: An item of `sinks` is not a sink, or a hyperparameter is of another type.
        RuntimeError: From `begin`: a sink serves another session.
        Exception: From `after_create_session`: a sink cannot open. A full disk or an unreachable server raises nothing:
            the sink is opened again later, and summaries may be lost.

    Example:
        >>> SinkHook([], hparams={"rate": 0.1, "schedule": print})
        Traceback (most recent call last):
        ...
        TypeError: SinkHook requires numbers, booleans, strings, None or lists of them as hparams, got <built-in ...

    References:
        None in `tf.train`.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        output_dir: str | os.PathLike[str] | None = None,
        hparams: Any = None,
    ) -> None:
        self.sinks, self._hparams = checked("SinkHook", sinks, hparams)
        self._output_dir = arguments.check_path("SinkHook", "output_dir", output_dir, optional=True)
        self._sink_set: SinkSet | None = None
        self._has_begun = self._has_failed = False
        names = ", ".join(type(sink).__name__ for sink in self.sinks)
        written = [f"all summaries to {names}"] if names else []
        written += ["hyperparameters"] if self._hparams else []
        self.output_description = ", and ".join(written)

    def begin(self) -> None:
        """Adds taps to the writers of this session's hooks."""
        require_global_step(self)
        self._has_begun = self._has_failed = False
        scope = WRITER_SCOPE.get()
        if scope is None and self.sinks:
            _logger.warning("SinkHook writes nothing to its sinks: it is not in the hooks of a monitored session.")
        elif process_group.is_primary() and scope is not None:
            self._sink_set = SinkSet(self.sinks, self._output_dir, scope.strict)
            FileWriterCache.add_taps(scope, self._sink_set)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Opens the sinks at the step of the session, and writes the hyperparameters."""
        if self._hparams and self._output_dir and not self._has_begun:
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb

            shown = {
                name: value if isinstance(value, bool | int | float | str) else str(value)
                for name, value in self._hparams.items()
            }
            writer = FileWriterCache.get(self._output_dir)
            writer.add_summary(hparams_pb(shown, start_time_secs=clock.time()), session.global_step)
        if self._sink_set is not None:
            is_new = not self._has_begun and not session.origin.startswith("restored")
            self._sink_set.begin(session.global_step, self._hparams, is_new)
        self._has_begun = True

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Records the failure of the training."""
        self._has_failed = True

    def after_close(self) -> None:
        """Closes the sinks.

        Raises:
            UnknownError: A sink has failed, and the session is strict.
        """
        sink_set, self._sink_set = self._sink_set, None
        if sink_set is not None:
            sink_set.close(self._has_failed)


def checked(who: str, sinks: Any, hparams: Any) -> tuple[list[Sink], dict[str, Any]]:
    """Checks and returns sinks and hyperparameters, the latter by name. Errors begin with `who`."""
    if isinstance(sinks, Sink):
        raise TypeError(f"{who} requires a list as sinks, got one sink: sinks=[{type(sinks).__name__}(...)].")
    found = arguments.check_list(who, "sinks", sinks, optional=True)
    for sink in found:
        _check_sink(who, sink)
    return found, _flatten_hparams(who, hparams)


def _check_sink(who: str, sink: Any) -> None:
    if not isinstance(sink, Sink):
        advice = f" Call it: {sink.__name__}()." if isinstance(sink, type) else ""
        raise TypeError(f"{who} requires objects of a subclass of Sink as sinks, got {sink!r}.{advice}")
    name = type(sink).__name__
    if type(sink).write is Sink.write:
        raise TypeError(f"{who} requires sinks with a method write(points), but {name} has none.")
    if isinstance(sink.takes, str):
        raise TypeError(
            f"{who} requires a collection of kinds as {name}.takes, got {sink.takes!r}. Make it ({sink.takes!r},)."
        )
    for kind in sink.takes:
        if kind not in KINDS:
            raise ValueError(f"{who} requires kinds of {', '.join(KINDS)} in {name}.takes, got {kind!r}.")


def _flatten_hparams(who: str, hparams: Any, name: str = "") -> dict[str, Any]:
    """Returns hyperparameters by name."""
    if hparams is None and not name:
        return {}
    if dataclasses.is_dataclass(hparams) and not isinstance(hparams, type):
        hparams = {field.name: getattr(hparams, field.name) for field in dataclasses.fields(hparams)}
    if isinstance(hparams, Mapping):
        found: dict[str, Any] = {}
        for key, part in hparams.items():
            new = _flatten_hparams(who, part, f"{name}/{key}" if name else str(key))
            if twice := found.keys() & new.keys():
                raise ValueError(f"{who}: two hyperparameters have one name, {min(twice)!r}. Rename one.")
            found |= new
        return found
    if not name:
        raise TypeError(
            f"{who} requires a dict or a dataclass as hparams, got {hparams!r}. For argparse's result, give vars(...)."
        )
    return {name: _plain_value(who, name, hparams)}


def _plain_value(who: str, name: str, value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value if isinstance(value, str) else value.name
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # A scalar of NumPy, JAX or PyTorch.
        value = value.item()
    if isinstance(value, list | tuple):
        return [_plain_value(who, name, item) for item in value]
    if not isinstance(value, _PLAIN):
        raise TypeError(
            f"{who} requires numbers, booleans, strings, None or lists of them as hparams, got {value!r} as "
            f"{name!r}. Give a name or a number instead, or leave it out."
        )
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(f"{who}: the hyperparameter {name!r} is too large for a number of 64 bits. Give it as text.")
    return value
