"""RecentMeans: means of metrics over the last steps, on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.coordination import peers
from hookline.graph import GraphKeys, Operation, Tensor, Variable, op, placement
from hookline.graph import spec as specs
from hookline.hooks import SessionRunHook

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = log.of(__name__)


class RecentMeans(SessionRunHook):
    """Averages metrics over the last steps.

    The values are in a ring buffer on the device, 4 bytes for each metric and step. Each step writes its values; a mean
    is computed only when it is fetched. As a hook it saves the ring in checkpoints, so that the means continue exactly
    after a restart or a recovery. A checkpoint without the ring, or with another one, is no error: the means start
    over, and the log reports it. Runs `begin`, `set_state`, `get_state` and `after_create_session`.

    Args:
        metrics: Tensors by name. Only scalars are averaged.
        steps: The number of steps, at least 1.

    Attributes:
        means: The means by name, with the prefix `mean/`; at first over fewer steps.
        moved: The update of a step.
        ring: The variable.
    """

    def __init__(self, metrics: Mapping[str, Tensor], steps: int) -> None:
        scalars = {name: tensor for name, tensor in metrics.items() if specs.open_shape(tensor.spec) == ()}
        if not scalars:
            raise ValueError("Loop: mean_over averages scalar metrics, and the step returns none.")
        self._names, self._steps = list(scalars), steps
        empty = {"values": np.zeros((steps, len(scalars)), np.float32), "count": np.zeros((), np.int32)}
        local = [GraphKeys.LOCAL_VARIABLES]
        self.ring = Variable(empty, name="recent", trainable=False, collections=local)
        # From the old ring, not from the update: fetching only a mean writes nothing.
        pushed = op(_pushed, name="recent/pushed")(self.ring, list(scalars.values()))
        self.moved: Operation = self.ring.assign(pushed).op
        found = op(_means, name="recent/means")(pushed)
        self.means: dict[str, Tensor] = {f"mean/{name}": found[place] for place, name in enumerate(scalars)}
        self._session: Session | None = None
        self._restored: Any = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._session = self._restored = None

    def get_state(self) -> dict[str, Any] | None:
        """Returns the ring for a checkpoint; before a session exists, the restored one."""
        if self._session is None:
            return self._restored
        ring = self._session.snapshot([self.ring])[self.ring.op.name]
        return {
            "names": self._names,
            "values": np.asarray(placement.here(ring["values"])),
            "count": int(placement.here(ring["count"])),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes the ring from a checkpoint."""
        self._session, self._restored = None, state

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Restores the ring, if it has the same metrics and number of steps."""
        self._session, state, self._restored = session, self._restored, None
        if not session.origin.startswith("restored"):
            return
        if state is None or state["names"] != self._names or len(state["values"]) != self._steps:
            if peers.speaks():
                _logger.info(
                    "Loop: the means over the last %d steps start over, because the checkpoint has no means of these "
                    "metrics over as many steps.",
                    self._steps,
                )
            return
        ring = {"values": jnp.asarray(state["values"]), "count": jnp.asarray(state["count"], jnp.int32)}
        session.lowlevel.load({self.ring.op.name: ring})


def _pushed(ring: Any, metrics: list[Any]) -> Any:
    values, count = ring["values"], ring["count"]
    row = jnp.stack([jnp.asarray(metric, jnp.float32) for metric in metrics])
    return {"values": values.at[count % len(values)].set(row), "count": count + 1}


def _means(ring: Any) -> Any:
    values, count = ring["values"], ring["count"]
    filled = jnp.arange(len(values)) < count
    return jnp.where(filled[:, None], values, 0).sum(axis=0) / jnp.minimum(count, len(values))
