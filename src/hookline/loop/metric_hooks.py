"""The hooks for a loop's metrics: the log and the history, the NaN check, means over the last steps."""

from __future__ import annotations

import base64
import bisect
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.coordination import Coordinator, process_group
from hookline.graph import GraphKeys, Operation, Tensor, Variable, op, placement
from hookline.graph.nodes import spec as specs
from hookline.hooks import Firing, LoggingTensorHook, NanTensorHook, SessionRunHook, Trigger
from hookline.hooks.only_for import unwrap
from hookline.hooks.reporting.progress_output import value_text
from hookline.loop.metrics import DEFAULT_NAME
from hookline.loop.step.step_result import is_loss
from hookline.session import Session

_logger = log.get_logger(__name__)


class Series(NamedTuple):
    """The values of one metric, and their global steps: `plt.plot(*series)`."""

    steps: list[int]
    values: list[float]


class History(dict[str, Series]):
    """The series of metrics by name, saved in checkpoints.

    Example:
        >>> history = History()
        >>> history.record(1, {"loss": 0.5})
        >>> history.record(2, {"loss": 0.25})
        >>> history.truncate(1)
        >>> history["loss"]
        Series(steps=[1], values=[0.5])
    """

    def record(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds numbers of a step, or replaces them if the step is the last one already."""
        for name, value in numbers.items():
            steps, values = self.setdefault(name, Series([], []))
            if steps and steps[-1] == step:
                values[-1] = value
            else:
                steps.append(step)
                values.append(value)

    def truncate(self, step: int) -> None:
        """Removes the values of later steps, which will be trained again."""
        for series in self.values():
            end = bisect.bisect_right(series.steps, step)
            del series.steps[end:], series.values[end:]

    def get_state(self) -> str:
        """Returns the series as one string, because a checkpoint's manifest lists each number of a hook's state."""
        return json.dumps(
            {name: [_encode(steps, "<i8"), _encode(values, "<f8")] for name, (steps, values) in self.items()}
        )

    def set_state(self, state: str) -> None:
        """Restores the series."""
        self.clear()
        for name, (steps, values) in json.loads(state).items():
            self[name] = Series(_decode(steps, "<i8"), _decode(values, "<f8"))


def _encode(numbers: list[Any], dtype: str) -> str:
    return base64.b64encode(np.asarray(numbers, dtype).tobytes()).decode()


def _decode(text: str, dtype: str) -> list[Any]:
    return np.frombuffer(base64.b64decode(text), dtype).tolist()


def history_hooks(hooks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Returns the hooks that have a `history`, each with the prefix of its metric names."""
    found = [hook for hook in map(unwrap, hooks) if isinstance(getattr(hook, "history", None), History)]
    return [(f"{hook.name}/" if getattr(hook, "name", "") else "", hook) for hook in found]


class MetricsLog(LoggingTensorHook):
    """Logs metrics and the global step after the run, in the same runs in which summaries are written.

    If a run has more steps than there are between two lines, all lines of a run are logged together (`in_rows`).

    Attributes:
        history: The scalar metrics of all logged steps.
    """

    def __init__(self, metrics: dict[str, Tensor], trigger: Trigger, *, in_rows: bool) -> None:
        super().__init__(metrics, trigger=_EveryRun(trigger) if in_rows else trigger)
        self._line_trigger, self.stacked = trigger, in_rows
        self.history = History()
        self.state_key = None  # A loop has one such hook; its history continues if the step returns other metrics.
        self._has_default_format = True  # `format_line` only adds the step to the line of the base class.

    def begin(self) -> None:
        """Looks up the tensors, and forgets an earlier session."""
        super().begin()
        self.history = History()

    def get_state(self) -> str:
        """Returns the history."""
        return self.history.get_state()

    def set_state(self, state: str) -> None:
        """Restores the history."""
        self.history.set_state(state)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Removes the history of later steps, which will be trained again."""
        self.history.truncate(session.global_step)

    def log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        """Logs the values, and adds the scalars to the history."""
        super().log(values, elapsed_secs)
        self.history.record(
            self._step, {name: float(np.asarray(value)) for name, value in values.items() if not np.ndim(value)}
        )

    def on_trigger(self, firing: Firing) -> None:
        """Logs a line, or all lines of a run."""
        last = firing.global_step
        assert last is not None, "a loop has one"
        if not self.stacked:
            self._step = last
            super().on_trigger(firing)
            return
        count, found = len(jax.tree.leaves(firing.values)[0]), []
        for row, step in enumerate(range(last - count + 1, last + 1)):
            if self._line_trigger.should_trigger_for_step(step):
                found.append((row, step, self._line_trigger.update_last_triggered_step(step)[0]))
        # All steps of a run end at the same time, so each line gets an equal share of the time since the last line.
        secs = [elapsed for *_, elapsed in found if elapsed is not None]
        share = sum(secs) / len(secs) if secs else None
        for row, self._step, elapsed in found:
            values = jax.tree.map(lambda leaf, row=row: leaf[row], firing.values)
            with np.printoptions(suppress=True):
                self.log(values, None if elapsed is None else share)

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        """Formats the step and the values in one line, with the digits of the progress line."""
        short = {name: value if np.ndim(value) else value_text(value) for name, value in values.items()}
        line = super().format_line(short, elapsed_secs)
        return f"step {self._step}: {' '.join(line.split())}"  # An array may be formatted over several lines.


class _EveryRun(Trigger):
    """Fires in each run; its saved state is that of the trigger of the lines."""

    def __init__(self, points: Trigger) -> None:
        self._line_trigger = points

    def next_step(self, after: int) -> int:
        return after + 1

    def should_trigger_for_step(self, step: int) -> bool:
        return True

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        return None, None

    def start(self, step: int) -> None:
        self._line_trigger.start(step)

    def check_up_to(self, step: int) -> None:
        self._line_trigger.check_up_to(step)

    def get_state(self) -> dict[str, Any]:
        return self._line_trigger.get_state()

    def set_state(self, state: Any) -> None:
        self._line_trigger.set_state(state)

    def resume(self, state: Any, step: int | None, saved_step: int | None) -> None:
        self._line_trigger.resume(state, step, saved_step)

    def __repr__(self) -> str:
        return repr(self._line_trigger)


def nan_check_hooks(
    metrics: Mapping[str, Tensor], returned: Collection[str], nan_check: str, on_nan: str, given: Iterable[Any] = ()
) -> list[NanTensorHook]:
    """Returns the hook that checks a metric for NaN, or hooks for all losses if none has the default name.

    Without any loss it returns no hook, and logs a warning.

    Args:
        metrics: The metrics.
        returned: The names of the metrics that the step returns, without those that the loop adds, as a learning rate.
        nan_check: As in `Loop.run`.
        on_nan: As in `Loop.run`.
        given: The user's hooks: a `NanTensorHook` of the same metric replaces the loop's.

    Raises:
        ValueError: There is no such metric.
    """
    losses = (
        [nan_check]
        if nan_check in metrics
        else [name for name in returned if nan_check == DEFAULT_NAME and is_loss(name)]
    )
    if losses:
        watched = [hook.loss_tensor for hook in map(unwrap, given) if isinstance(hook, NanTensorHook)]
        losses = [name for name in losses if not any(metrics[name] is tensor for tensor in watched)]
        hooks = {name: NanTensorHook(metrics[name], on_nan=on_nan) for name in losses}
        for name, hook in hooks.items():
            hook.display_name = name
        return list(hooks.values())
    if nan_check != DEFAULT_NAME or on_nan != "raise":
        raise ValueError(
            f"Loop: there is no metric {nan_check!r} to check for NaN. Available metrics: "
            f"{', '.join(metrics) or 'none'}."
        )
    if returned:
        _logger.warning(
            "Loop: no metric is called a loss, so none is checked for NaN. Give one, nan_check=%r, or nan_check=None.",
            next(iter(returned)),
        )
    return []


class RecentMeans(SessionRunHook):
    """Averages metrics over the last steps.

    The values are in a ring buffer on the device, 4 bytes for each metric and step. Each step writes its values; a mean
    is computed only when it is fetched. As a hook it saves the buffer in checkpoints, so that the means continue
    exactly after a restart or a recovery. If a checkpoint has no such buffer, or that of other metrics or another
    number of steps, the means start over, with a line in the log. Callbacks: `begin`, `set_state`, `get_state` and
    `after_create_session`.

    Args:
        metrics: Tensors by name. Only scalars are averaged.
        steps: The number of steps, at least 1.

    Attributes:
        means: The means by name, with the prefix `mean/`; at first over fewer steps.
        update_op: The operation that adds the values of a step.
        buffer: The variable of the ring buffer.
    """

    def __init__(self, metrics: Mapping[str, Tensor], steps: int) -> None:
        scalars = {name: tensor for name, tensor in metrics.items() if specs.open_shape(tensor.spec) == ()}
        if not scalars:
            raise ValueError("Loop: smoothing_steps averages scalar metrics, and the step returns none.")
        self._names, self._steps = list(scalars), steps
        empty = {"values": np.zeros((steps, len(scalars)), np.float32), "count": np.zeros((), np.int32)}
        local = [GraphKeys.LOCAL_VARIABLES]
        self.buffer = Variable(empty, name="recent", trainable=False, collections=local)
        # Computed from the old buffer and the new values, not from the assignment: fetching only a mean writes nothing.
        pushed = op(_push, name="recent/pushed")(self.buffer, list(scalars.values()))
        self.update_op: Operation = self.buffer.assign(pushed).op
        found = op(_means, name="recent/means")(pushed)
        self.means: dict[str, Tensor] = {f"mean/{name}": found[index] for index, name in enumerate(scalars)}
        self._session: Session | None = None
        self._restored: Any = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._session = self._restored = None

    def get_state(self) -> dict[str, Any] | None:
        """Returns the buffer for a checkpoint; before a session exists, the restored one."""
        if self._session is None:
            return self._restored
        ring = self._session.snapshot([self.buffer])[self.buffer.op.name]
        return {
            "names": self._names,
            "values": np.asarray(placement.addressable_data(ring["values"])),
            "count": int(placement.addressable_data(ring["count"])),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Keeps the buffer of a checkpoint until the session is created."""
        self._session, self._restored = None, state

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Restores the buffer, if it has the same metrics and number of steps."""
        self._session, state, self._restored = session, self._restored, None
        if not session.origin.startswith("restored"):
            return
        if state is None or state["names"] != self._names or len(state["values"]) != self._steps:
            if process_group.is_primary():
                _logger.info(
                    "Loop: the means over the last %d steps start over, because the checkpoint has no means of these "
                    "metrics over as many steps.",
                    self._steps,
                )
            return
        ring = {"values": jnp.asarray(state["values"]), "count": jnp.asarray(state["count"], jnp.int32)}
        session.backend.load({self.buffer.op.name: ring})


def _push(ring: Any, metrics: list[Any]) -> Any:
    values, count = ring["values"], ring["count"]
    row = jnp.stack([jnp.asarray(metric, jnp.float32) for metric in metrics])
    return {"values": values.at[count % len(values)].set(row), "count": count + 1}


def _means(ring: Any) -> Any:
    values, count = ring["values"], ring["count"]
    filled = jnp.arange(len(values)) < count
    return jnp.where(filled[:, None], values, 0).sum(axis=0) / jnp.minimum(count, len(values))
