"""NanTensorHook: detects NaN in the loss, without a wait for the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments, log
from hookline.checkpoint import Saver
from hookline.coordination import Coordinator
from hookline.errors import NanLossDuringTrainingError
from hookline.graph import Tensor, get_default_graph, latch, op, skip_updates_if
from hookline.hooks.base import Firing, SessionRunArgs, SessionRunContext, SessionRunHook
from hookline.hooks.control.checkpoint_saver import CheckpointSaverHook
from hookline.hooks.lookup import REPLAY_ADVICE, find_tensor, joined_names, require_global_step, session_savers
from hookline.hooks.triggers import every, latched
from hookline.session import Session

_logger = log.get_logger(__name__)

RAISE, STOP, SKIP, ROLLBACK = "raise", "stop", "skip", "rollback"
_REACTIONS = (RAISE, STOP, SKIP, ROLLBACK)
# A fixed number, whatever the speed of the device: otherwise an interrupted job could end with different weights.
_ROLLBACK_LAG_RUNS = 8
_MAX_TIMES = 10


class NanTensorHook(SessionRunHook):
    """Reacts to NaN in a tensor, usually the loss: ends the training, skips the update, or rolls back.

    The device checks the value in each step, and a latch (`hookline.latch`) records the first run with a NaN. The
    session reads the latch from time to time, and calls the hook if there was a NaN. So the hook may react up to
    `SessionConfig.max_runs_ahead` (28) runs after the NaN, but always before a checkpoint is written, and before the
    `end` of any hook. The error names the step of the NaN.

    Callbacks: `begin`, `after_create_session`, `before_trigger`, `on_trigger`, `get_state`, `set_state`; nothing after
    an exception.

    `on_nan` chooses the reaction:

    - "raise" ends the training with an error, and "stop" with a warning. The state after the NaN is not saved: a
      restart continues from the newest checkpoint before it.
    - "skip": the run changes only the global step, keys and the position in the data. The device skips all other
      updates in the same program, as with `hookline.skip_updates_if`. The hook reads the check of each run.
    - "rollback": all variables except the global step and keys (weights, optimizer slots, averages) are restored from
      the last good checkpoint, or from the newest if none is known to be good (`Saver.roll_back`). A checkpoint is good
      if a finite value was computed from it; the last good one is not deleted. The global step, keys and data go on, so
      no batch is used twice. A rollback happens exactly eight runs after the NaN, or before the next checkpoint if that
      comes first.

    Args:
        loss_tensor: The tensor to check, or its name. Its value may be any structure of arrays.
        fail_on_nan_loss: Whether a NaN is an error; otherwise it is a warning and a request to stop. Not with `on_nan`.
        include_inf: Whether an infinity counts as a NaN.
        strict: Whether to wait for each run, and to react in its `after_run`.
        on_nan: "raise", "stop", "skip" or "rollback".
        max_times: The number of consecutive skips or rollbacks that is allowed, 10 by default; one more is an error.
            When a later checkpoint is known to be good, the count of rollbacks starts again. A restart keeps the count.
        saver: The saver of the checkpoints for rollbacks; by default the saver of the session's `CheckpointSaverHook`.

    Attributes:
        loss_tensor, include_inf: As given.
        on_nan: The reaction in use.
        display_name: The name of the tensor in messages.

    Raises:
        ValueError: Arguments contradict each other. From `after_create_session`: "skip" or "rollback" with variables on
            parameter servers.
        RuntimeError: From `after_create_session`: there is no saver for rollbacks, or there are several.
        NanLossDuringTrainingError: From `on_trigger`: there was a NaN, and it is an error.

    Example:
        >>> hook = NanTensorHook("loss:0", include_inf=True)
        >>> NanTensorHook("loss:0", on_nan="skip", fail_on_nan_loss=False)
        Traceback (most recent call last):
        ...
        ValueError: NanTensorHook takes fail_on_nan_loss or on_nan, got both. ...

    References:
        `tf.train.NanTensorHook`. Differences: the check runs on the device and is read later, unless `strict=True`; no
        state after a NaN is saved; `include_inf`; the error names the step; `on_nan`.
    """

    display_name = ""  # In the class, because some published subclasses do not call this constructor.

    def __init__(
        self,
        loss_tensor: Tensor | str,
        fail_on_nan_loss: bool = True,
        *,
        include_inf: bool = False,
        strict: bool = False,
        on_nan: str | None = None,
        max_times: int | None = None,
        saver: Saver | None = None,
    ) -> None:
        self.on_nan = _checked_reaction(on_nan, fail_on_nan_loss, max_times, saver)
        self.loss_tensor = loss_tensor
        self.display_name = joined_names([loss_tensor])
        self.state_key = f"{self.display_name}{' or infinity' if include_inf else ''}, {self.on_nan}"
        self.include_inf = include_inf
        self._max_times = _MAX_TIMES if max_times is None else max_times
        self._given_saver = saver
        self._uses_latch = not strict and self.on_nan in (RAISE, STOP)
        self.deferred = not strict and {SKIP: True, ROLLBACK: _ROLLBACK_LAG_RUNS}.get(self.on_nan, False)
        kind = type(self)
        is_own = kind.before_run is SessionRunHook.before_run and kind.after_run is SessionRunHook.after_run
        self.stacked = not self._uses_latch and is_own  # An override of these callbacks expects one step.
        if self.on_nan == ROLLBACK:
            self.comes_after = CheckpointSaverHook
        self._saver: Saver | None = None
        self._last_step = 0
        # The number of the saver's rollbacks that this hook knows of; other hooks may make some too.
        self._rollbacks = 0
        # The runs up to this step were rolled back, so their checks are ignored.
        self._rolled_back_step = -1
        self._consecutive = 0
        self._rollback_checkpoint: str | None = None

    def begin(self) -> None:
        """Adds the check to the graph, unless another hook has added it.

        Raises:
            KeyError: The tensor is not in the graph.
        """
        require_global_step(self)
        self._consecutive, self._rollback_checkpoint = 0, None
        loss = find_tensor(self, self.loss_tensor)
        check = _check_node(loss, self.include_inf, self.on_nan == SKIP)
        if self._uses_latch:
            self.trigger = latched(_get_or_create_node("latches", check, lambda: latch(check, name="nan_latch")))
        else:
            self.trigger, self.fetches = every(runs=1), check

    @property
    def _keeps_state(self) -> bool:
        """Whether it has a state, so that two hooks on the same loss are an error."""
        return self.on_nan in (SKIP, ROLLBACK) or type(self).get_state is not NanTensorHook.get_state

    def get_state(self) -> dict[str, Any] | None:
        """Returns the number of consecutive skips or rollbacks, and the checkpoint of the last rollback."""
        if self.on_nan not in (SKIP, ROLLBACK):
            return None
        return {"consecutive": self._consecutive, "rollback_checkpoint": self._rollback_checkpoint}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the count after a restart."""
        self._consecutive, self._rollback_checkpoint = state["consecutive"], state["rollback_checkpoint"]

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Looks up the saver, and forgets the runs of an earlier session."""
        if self.on_nan in (SKIP, ROLLBACK) and session.backend.shared:
            raise ValueError(
                f"NanTensorHook does not support on_nan={self.on_nan!r} with variables on parameter servers, which "
                f"other workers change too. Use {RAISE!r} or {STOP!r}, or leave such values out of the updates."
            )
        if self.on_nan == ROLLBACK:
            self._saver = self._given_saver or _only_saver(session)
            self._last_step, self._rolled_back_step = session.global_step, -1
            self._rollbacks = self._saver.rollbacks

    def before_trigger(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Requests the check; a latch needs no request."""
        self._notice_rollbacks(run_context.session)
        return super().before_trigger(run_context)

    def on_trigger(self, firing: Firing) -> None:
        """Reacts to a NaN that the latch or the check of a step has found.

        Raises:
            NanLossDuringTrainingError: There was a NaN, and it is an error.
        """
        step = firing.global_step
        assert step is not None, "begin has checked that there is a global step"
        self._notice_rollbacks(firing.context.session)
        if self._uses_latch:
            self.react(firing.context, step)
            return
        # The global step before the run.
        step_before, self._last_step = self._last_step, step
        rows = np.atleast_1d(firing.values)
        step_delta = (step - step_before) // len(rows)
        for number, is_bad in enumerate(rows, start=1):
            self._check(
                firing.context, step_before + step_delta * (number - 1), step_before + step_delta * number, is_bad
            )

    def _check(self, context: SessionRunContext, step_before: int, step: int, is_nan: Any) -> None:
        if step <= self._rolled_back_step:
            return
        if is_nan:
            self.react(context, step)
        elif self._saver is not None:
            self._saver.mark_good(step_before)
        else:
            self._consecutive = 0

    def react(self, context: SessionRunContext, step: int) -> None:
        """Reacts to a NaN in the run that led to `step`."""
        what = "NaN or an infinity" if self.include_inf else "NaN"
        name = self.display_name or joined_names([self.loss_tensor])
        message = f"NanTensorHook found {what} in {name} at step {step}."
        if self.on_nan == SKIP:
            self._count_consecutive(context.session, message)
            _logger.warning("%s Its updates were skipped.%s", message, self._consecutive_text())
            return
        if self.on_nan == ROLLBACK:
            self._roll_back(context.session, message, step)
            return
        # The host reads the check later than the device computes it.
        if (now := context.session.global_step) > step:
            message = f"{message[:-1]}, and noticed it at step {now}."
        advice = _replay_advice(context.session, step)
        error = NanLossDuringTrainingError(
            f"{message} No state after it is saved: change something, and restart from the newest checkpoint.{advice}"
        )
        context.session.mark_invalid(error, more_runs=1)
        if self.on_nan == RAISE:
            raise error
        _logger.warning("%s Stopping.%s", message, advice)
        context.request_stop()

    def _roll_back(self, session: Session, message: str, step: int) -> None:
        assert self._saver is not None, "after_create_session has set it"
        good = self._saver.last_good
        good = None if good is None else os.path.basename(good)
        if good != self._rollback_checkpoint:
            self._consecutive = 0
        self._count_consecutive(session, message)
        self._rollback_checkpoint = good
        path = self._saver.roll_back(session)
        self._notice_rollbacks(session)
        self._last_step = session.global_step
        _logger.warning(
            "%s The weights were restored from %s; the training continues at global step %d with the next batch.%s%s",
            message,
            path,
            self._last_step,
            self._consecutive_text(),
            _replay_advice(session, step),
        )

    def _notice_rollbacks(self, session: Session) -> None:
        if self._saver is not None and self._saver.rollbacks != self._rollbacks:
            self._rollbacks, self._rolled_back_step = self._saver.rollbacks, session.global_step

    def _count_consecutive(self, session: Session, message: str) -> None:
        self._consecutive += 1
        if self._consecutive > self._max_times:
            done = "were skipped" if self.on_nan == SKIP else "were rolled back to the same checkpoint"
            error = NanLossDuringTrainingError(
                f"{message} The {self._max_times} consecutive ones before it {done} (max_times). Change something: the "
                f"learning rate, the data, or the checked tensor."
            )
            session.mark_invalid(error)
            raise error

    def _consecutive_text(self) -> str:
        return (
            f" This was number {self._consecutive} in a row; more than {self._max_times} end the training."
            if self._consecutive > 1
            else ""
        )


def _checked_reaction(on_nan: str | None, fail_on_nan_loss: bool, max_times: int | None, saver: Saver | None) -> str:
    """Returns the reaction to a NaN; raises `ValueError` or `TypeError` for contradictory arguments."""
    if on_nan is not None and not fail_on_nan_loss:
        raise ValueError(
            "NanTensorHook takes fail_on_nan_loss or on_nan, got both. on_nan='stop' means fail_on_nan_loss=False."
        )
    if on_nan is not None and on_nan not in _REACTIONS:
        raise ValueError(f"NanTensorHook requires on_nan to be one of {', '.join(_REACTIONS)}, got {on_nan!r}.")
    reaction = on_nan or (RAISE if fail_on_nan_loss else STOP)
    if max_times is not None:
        arguments.check_int("NanTensorHook", "max_times", max_times, at_least=0)
        if reaction not in (SKIP, ROLLBACK):
            raise ValueError(f"NanTensorHook takes max_times with on_nan={SKIP!r} or {ROLLBACK!r}, got {reaction!r}.")
    if arguments.check_optional("NanTensorHook", "saver", saver, Saver) is not None and reaction != ROLLBACK:
        raise ValueError(f"NanTensorHook takes a saver with on_nan={ROLLBACK!r}, got {reaction!r}.")
    return reaction


def _replay_advice(session: Session, step: int) -> str:
    """Returns how to look at the steps before a NaN, if they can be replayed."""
    advise = session.hook_data.get(REPLAY_ADVICE)
    return "" if advise is None else advise(session, step)


def _only_saver(session: Session) -> Saver:
    found = session_savers(session)
    if len(found) != 1:
        raise RuntimeError(
            f"NanTensorHook requires exactly one saver for rollbacks, found {len(found)} that save this session. "
            "Give the session a checkpoint_dir or a CheckpointSaverHook, or pass saver=."
        )
    (saver,) = found
    return saver


def _check_node(loss: Tensor, include_inf: bool, skips: bool) -> Tensor:
    """Returns the node that checks `loss`."""
    if skips:
        return _get_or_create_node(
            "skips", (loss, include_inf), lambda: skip_updates_if(_check_node(loss, include_inf, False))
        )
    made = op(_has_nan, name="nan_check")
    return _get_or_create_node("checks", (loss, include_inf), lambda: made.node(loss, include_inf=include_inf))


def _get_or_create_node(kind: str, of: Any, make: Callable[[], Any]) -> Any:
    """Returns a node that all hooks on this graph share; makes it the first time."""
    graph, collection = get_default_graph(), f"hookline/nan_{kind}"
    found = next((made for known, made in graph.get_collection(collection) if known == of), None)
    if found is None:
        found = make()
        graph.add_to_collection(collection, (of, found))
    return found


def _has_nan(value: Any, *, include_inf: bool) -> jax.Array:
    bad = jnp.zeros((), bool)
    for leaf in jax.tree.leaves(value):
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad |= (~jnp.isfinite(array) if include_inf else jnp.isnan(array)).any()
    return bad
