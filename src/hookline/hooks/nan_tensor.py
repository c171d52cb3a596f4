"""NanTensorHook: notices that the loss has become NaN, without making the training wait for it."""

from __future__ import annotations

import collections
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.checkpoint import Saver
from hookline.checkpoint.serving import savers_of
from hookline.errors import NanLossDuringTrainingError
from hookline.graph import Operation, Tensor, get_default_graph, latch, op, skip_updates_if
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.checkpoint_saver import CheckpointSaverHook
from hookline.hooks.lookup import find_tensor, require_global_step

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

RAISE, STOP, SKIP, ROLLBACK = "raise", "stop", "skip", "rollback"
_REACTIONS = (RAISE, STOP, SKIP, ROLLBACK)
_CHECKS = "hookline/nan_checks"
_LATCHES = "hookline/nan_latches"
_MAX_UNREAD = 32
# When a rollback comes must not depend on how fast the device is today: then an interrupted job would end otherwise.
_ROLLBACK_LAG = 8
_MAX_TIMES = 10


class NanTensorHook(SessionRunHook):
    """Does something about a tensor, usually the loss, that has a NaN anywhere in its value.

    The device checks the value in the step, and remembers the first run in which it was bad (`hookline.latch`). The
    session looks at that now and then, and calls the hook when there is something to say. A NaN is therefore reported
    up to `SessionConfig.max_runs_ahead` (28) runs late, but before any checkpoint is written and before the `end` of
    any hook; the error names the step where it happened. Runs `begin`, `after_create_session`, `settle`, and on few
    runs `before_run` and `after_run`, above all after a NaN; nothing after an exception.

    What it does is said by `on_nan`:

    - "raise": it ends the training with an error; "stop": with a warning.
    - "skip": the run changes nothing. The device decides that, in the same program, as of `hookline.skip_updates_if`:
      the step counts, keys and data go on, every other update is held back. The hook then reads the check of each run.
    - "rollback": weights, slots and averages go back to the last checkpoint from which a finite value was computed, or
      else to the newest (`Saver.roll_back`). The global step, keys and data go on, so no batch between is used again.
      It comes eight runs late, always. A checkpoint that is not known to be good yet leaves the one before it in place.

    Args:
        loss_tensor: The tensor to watch, or its name: any structure of arrays.
        fail_on_nan_loss: Whether a NaN is an error; if not, it is a warning and a request to stop. Not beside `on_nan`.
        include_inf: Whether infinities count as well.
        strict: Whether to wait for each run and report in its own `after_run`.
        on_nan: "raise", "stop", "skip" or "rollback".
        max_times: How often in a row a run may be skipped, or the training go back; 10 by default. The next time is an
            error. Rollbacks are in a row until a later checkpoint has proved good. A restart goes on counting.
        saver: Whose checkpoints to go back to; by default the saver of the session's `CheckpointSaverHook`.

    Raises:
        ValueError: Arguments that contradict each other. From `after_create_session`: skipping or going back where
            variables live on parameter servers.
        RuntimeError: From `after_create_session`: there is no saver to go back with, or several.
        NanLossDuringTrainingError: From `after_run` or `settle`.

    Example:
        >>> hook = NanTensorHook("loss:0", include_inf=True)
        >>> NanTensorHook("loss:0", on_nan="skip", fail_on_nan_loss=False)
        Traceback (most recent call last):
        ...
        ValueError: NanTensorHook takes fail_on_nan_loss or on_nan, got both. ...

    References:
        `tf.train.NanTensorHook`. Differences: the check runs on the device and is read late, `strict=True` gives the
        documented moment; `include_inf`; the error names the step; `on_nan`.
    """

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
        self._reaction = _checked_reaction(on_nan, fail_on_nan_loss, max_times, saver)
        self._loss_tensor = loss_tensor
        self._include_inf = include_inf
        self._max_times = _MAX_TIMES if max_times is None else max_times
        self._given_saver = saver
        self._waits_its_time = self._reaction == ROLLBACK
        self._latches = not strict and self._reaction in (RAISE, STOP)
        self._latch: Operation | None = None
        self._max_unread = 0 if strict else _ROLLBACK_LAG if self._waits_its_time else _MAX_UNREAD
        if self._reaction == ROLLBACK:
            self.comes_after = CheckpointSaverHook
        self._loss_name = ""
        self._args = SessionRunArgs(None)
        self._unread: collections.deque[tuple[int, int, Any]] = collections.deque()
        self._coord: Coordinator | None = None
        self.has_found_nan = False
        self._saver: Saver | None = None
        self._last_step = 0
        # How often the training had gone back when the run began; not only this hook may have it go back.
        self._rollbacks = 0
        self._times = 0
        self._gone_back_to: str | None = None

    def begin(self) -> None:
        """Adds the check to the graph, unless it is there.

        Raises:
            KeyError: The tensor is not in the graph.
        """
        require_global_step(self)
        self._unread.clear()
        self._times, self._gone_back_to = 0, None
        loss = find_tensor(self, self._loss_tensor)
        self._loss_name = loss.name
        check = _check_of(loss, self._include_inf, self._reaction == SKIP)
        self._latch = _latch_of(check) if self._latches else None
        self._args = SessionRunArgs(self._latch or check)

    def standing_operations(self) -> Sequence[Operation]:
        """Returns the latch: every run carries it, also those that the hook does not look at."""
        return [] if self._latch is None else [self._latch]

    def get_state(self) -> dict[str, Any] | None:
        """Returns how often in a row it has skipped, or gone back to which checkpoint."""
        if self._reaction not in (SKIP, ROLLBACK):
            return None
        return {"times": self._times, "gone_back_to": self._gone_back_to}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on counting after a restart."""
        self._times, self._gone_back_to = state["times"], state["gone_back_to"]

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Forgets the runs of a lost session: what they did has been undone."""
        self._unread.clear()
        self._coord, self.has_found_nan = coord, False
        if self._reaction in (SKIP, ROLLBACK) and session.shared:
            raise ValueError(
                f"NanTensorHook cannot do on_nan={self._reaction!r} where variables live on parameter servers: other "
                f"workers go on from them. Use {RAISE!r} or {STOP!r}, or leave out such values in the updates."
            )
        if self._reaction == ROLLBACK:
            self._saver = self._given_saver or _only_saver(session)
            self._last_step = session.global_step

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Asks for the check."""
        if self._saver is not None:
            self._rollbacks = self._saver.rollbacks
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Reads what has arrived."""
        if self._latch is not None:
            self._look(run_context.session, run_context.request_stop, wait=False)
            return
        unread = self._unread
        unread.append((run_context.session.global_step, self._rollbacks, run_values.results))
        while unread and (len(unread) > self._max_unread or (not self._waits_its_time and unread[0][2].is_ready())):
            self._read(run_context.session, run_context.request_stop)

    def settle(self, session: Session) -> None:
        """Waits for the runs not yet read, and reads them."""
        if self._latch is not None:
            self._look(session, self._request_stop, wait=True)
        while self._unread:
            self._read(session, self._request_stop)

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns 1 where each run has a check of its own; otherwise the session says when the latch has latched."""
        return sys.maxsize if self._latches else 1

    def _look(self, session: Session, request_stop: Callable[[], None], *, wait: bool) -> None:
        assert self._latch is not None, "begin comes before"
        step = session.latched(self._latch, wait=wait)
        if step is not None and not self.has_found_nan:
            self._react(session, step, request_stop)

    def _request_stop(self) -> None:
        if self._coord is not None:
            self._coord.request_stop()

    def _read(self, session: Session, request_stop: Callable[[], None]) -> None:
        """Reads the oldest check, and does what is to be done about it."""
        step, rollbacks, check = self._unread.popleft()
        # Where the run before it had led to.
        began, self._last_step = self._last_step, step
        if self._saver is not None and rollbacks != self._saver.rollbacks:
            return  # What this run did has been taken back already.
        # NumPy's view of a bool that is there is the cheapest way to read it.
        if np.asarray(check):
            self._react(session, step, request_stop)
        elif self._saver is not None:
            self._saver.prove(began)
        else:
            self._times = 0

    def _react(self, session: Session, step: int, request_stop: Callable[[], None]) -> None:
        what = "NaN or an infinity" if self._include_inf else "NaN"
        message = f"NanTensorHook found {what} in {self._loss_name}, in the run that led to global step {step}."
        if self._reaction == SKIP:
            self._count(message)
            _logger.warning("%s Its updates were held back.%s", message, self._in_a_row())
            return
        self._unread.clear()
        if self._reaction == ROLLBACK:
            self._go_back(session, message)
            return
        self.has_found_nan = True
        if self._reaction == STOP:
            _logger.warning("%s Stopping.", message)
            request_stop()
        else:
            raise NanLossDuringTrainingError(f"{message} Restart from a checkpoint before it, and change something.")

    def _go_back(self, session: Session, message: str) -> None:
        assert self._saver is not None, "after_create_session comes before"
        good = self._saver.last_good
        good = None if good is None else os.path.basename(good)
        if good != self._gone_back_to:
            self._times = 0
        self._count(message)
        self._gone_back_to = good
        path = self._saver.roll_back(session)
        self._last_step = session.global_step
        _logger.warning(
            "%s The weights went back to those of %s; the training goes on at global step %d with what comes next.%s",
            message,
            path,
            self._last_step,
            self._in_a_row(),
        )

    def _count(self, message: str) -> None:
        self._times += 1
        if self._times > self._max_times:
            self._unread.clear()
            self.has_found_nan = True
            done = "been skipped" if self._reaction == SKIP else "led back to the same checkpoint"
            raise NanLossDuringTrainingError(
                f"{message} {self._max_times} before it in a row have {done} (max_times). Change something: the "
                f"learning rate, the data, or what is watched."
            )

    def _in_a_row(self) -> str:
        return f" {self._times} in a row; the training ends after {self._max_times}." if self._times > 1 else ""


def _checked_reaction(on_nan: str | None, fail_on_nan_loss: bool, max_times: int | None, saver: Saver | None) -> str:
    """Returns what to do about a NaN; `ValueError` or `TypeError` where the arguments do not say one thing."""
    if on_nan is not None and not fail_on_nan_loss:
        raise ValueError(
            "NanTensorHook takes fail_on_nan_loss or on_nan, got both. on_nan='stop' means fail_on_nan_loss=False."
        )
    if on_nan is not None and on_nan not in _REACTIONS:
        raise ValueError(f"NanTensorHook requires on_nan to be one of {', '.join(_REACTIONS)}, got {on_nan!r}.")
    reaction = on_nan or (RAISE if fail_on_nan_loss else STOP)
    if max_times is not None:
        arguments.whole("NanTensorHook", "max_times", max_times, at_least=0)
        if reaction not in (SKIP, ROLLBACK):
            raise ValueError(f"NanTensorHook takes max_times with on_nan={SKIP!r} or {ROLLBACK!r}, got {reaction!r}.")
    if arguments.instance("NanTensorHook", "saver", saver, Saver) is not None and reaction != ROLLBACK:
        raise ValueError(f"NanTensorHook takes a saver with on_nan={ROLLBACK!r}, got {reaction!r}.")
    return reaction


def _only_saver(session: Session) -> Saver:
    found = savers_of(session)
    if len(found) != 1:
        raise RuntimeError(
            f"NanTensorHook requires exactly one saver to roll back with, found {len(found)} that save this session. "
            "Give the session a checkpoint_dir or a CheckpointSaverHook, or pass saver=."
        )
    return found[0]


def _check_of(loss: Tensor, include_inf: bool, skips: bool) -> Tensor:
    """Returns the node that checks `loss`, which all hooks on this graph share."""
    graph = get_default_graph()
    for known_loss, *known, check in graph.get_collection(_CHECKS):
        if known_loss is loss and known == [include_inf, skips]:
            return check
    if skips:
        check = skip_updates_if(_check_of(loss, include_inf, False))
    else:
        check = op(_has_bad, name="nan_check").node(loss, include_inf=include_inf)
    graph.add_to_collection(_CHECKS, (loss, include_inf, skips, check))
    return check


def _latch_of(check: Tensor) -> Operation:
    """Returns the latch of a check, which all hooks on this graph share."""
    graph = get_default_graph()
    for known, latched in graph.get_collection(_LATCHES):
        if known is check:
            return latched
    latched = latch(check, name="nan_latch")
    graph.add_to_collection(_LATCHES, (check, latched))
    return latched


def _has_bad(value: Any, *, include_inf: bool) -> jax.Array:
    bad = jnp.zeros((), bool)
    for leaf in jax.tree.leaves(value):
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad |= (~jnp.isfinite(array) if include_inf else jnp.isnan(array)).any()
    return bad
