"""NanTensorHook: notices that the loss has become NaN, without making the training wait for it."""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import NanLossDuringTrainingError
from hookline.graph import Tensor, get_default_graph, op
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import find_tensor, require_global_step

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

_CHECKS = "hookline/nan_checks"
_MAX_UNREAD = 32


class NanTensorHook(SessionRunHook):
    """Ends the training when a tensor, usually the loss, has a NaN anywhere in its value.

    The device reduces the value to one bool, in the step. The hook reads the bool of a run once it has arrived, and so
    never waits for the device, unless more than 32 runs are unread. A NaN is therefore reported some runs late, but
    before any checkpoint is written and before the `end` of any hook; the error names the step where it happened. Runs
    `begin`, `after_create_session`, `before_run`, `after_run` and `settle`; nothing after an exception.

    Args:
        loss_tensor: The tensor to watch, or its name: any structure of arrays.
        fail_on_nan_loss: Whether a NaN is an error; if not, it is a warning and a request to stop.
        include_inf: Whether infinities count as well.
        strict: Whether to wait for each run and report in its own `after_run`.

    Raises:
        NanLossDuringTrainingError: From `after_run` or `settle`.

    Example:
        >>> hook = NanTensorHook("loss:0", include_inf=True)

    References:
        `tf.train.NanTensorHook`. Differences: the check runs on the device and is read late, `strict=True` gives the
        documented moment; `include_inf`; the error names the step.
    """

    def __init__(
        self,
        loss_tensor: Tensor | str,
        fail_on_nan_loss: bool = True,
        *,
        include_inf: bool = False,
        strict: bool = False,
    ) -> None:
        self._loss_tensor = loss_tensor
        self._fail_on_nan_loss = fail_on_nan_loss
        self._include_inf = include_inf
        self._max_unread = 0 if strict else _MAX_UNREAD
        self._loss_name = ""
        self._args = SessionRunArgs(None)
        self._unread: collections.deque[tuple[int, Any]] = collections.deque()
        self._coord: Coordinator | None = None
        self.has_found_nan = False

    def begin(self) -> None:
        """Adds the check to the graph, unless it is there.

        Raises:
            KeyError: The tensor is not in the graph.
        """
        require_global_step(self)
        self._unread.clear()
        loss = find_tensor(self, self._loss_tensor)
        self._loss_name = loss.name
        self._args = SessionRunArgs(_check_of(loss, self._include_inf))

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Forgets the runs of a lost session: what they did has been undone."""
        self._unread.clear()
        self._coord, self.has_found_nan = coord, False

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Asks for the check."""
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Reads the checks that have arrived."""
        unread = self._unread
        unread.append((run_context.session.global_step, run_values.results))
        while unread and (len(unread) > self._max_unread or unread[0][1].is_ready()):
            step, check = unread.popleft()
            # NumPy's view of a bool that is there is the cheapest way to read it.
            if np.asarray(check):
                self._report(step)
                run_context.request_stop()

    def settle(self, session: Session) -> None:
        """Waits for the runs not yet read, and reads them."""
        while self._unread:
            step, check = self._unread.popleft()
            if np.asarray(check):
                self._report(step)
                if self._coord is not None:
                    self._coord.request_stop()

    def _report(self, step: int) -> None:
        self._unread.clear()
        self.has_found_nan = True
        what = "NaN or an infinity" if self._include_inf else "NaN"
        message = f"NanTensorHook found {what} in {self._loss_name}, in the run that led to global step {step}."
        if self._fail_on_nan_loss:
            raise NanLossDuringTrainingError(f"{message} Restart from a checkpoint before it, and change something.")
        _logger.warning("%s Stopping.", message)


def _check_of(loss: Tensor, include_inf: bool) -> Tensor:
    """Returns the node that checks `loss`, which all hooks on this graph share."""
    graph = get_default_graph()
    for known_loss, known_include_inf, check in graph.get_collection(_CHECKS):
        if known_loss is loss and known_include_inf == include_inf:
            return check
    check = op(_has_bad, name="nan_check").node(loss, include_inf=include_inf)
    graph.add_to_collection(_CHECKS, (loss, include_inf, check))
    return check


def _has_bad(value: Any, *, include_inf: bool) -> jax.Array:
    bad = jnp.zeros((), bool)
    for leaf in jax.tree.leaves(value):
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad |= (~jnp.isfinite(array) if include_inf else jnp.isnan(array)).any()
    return bad
