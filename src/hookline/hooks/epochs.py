"""EpochEnds: fires at the ends of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from hookline.data.epochs import Epochs
from hookline.hooks.base import instance_trigger
from hookline.hooks.only_for import unwrap
from hookline.hooks.trigger import NEVER, Trigger

if TYPE_CHECKING:
    from hookline.session import Session

Epoch = Literal["epoch"]
"""In place of a number of steps: `every(epochs=1)`."""

EPOCH: Epoch = "epoch"

_NO_LOOP = (
    "only in a train.Loop does each step take one batch; in a graph of your own it may take none or several. Give a "
    "number of steps"
)


def set_epochs(hooks: Iterable[Any], epochs: Epochs | str) -> None:
    """Sets the epochs of hooks' triggers before a session; raises `ValueError` if one needs them, and gets a reason."""
    for trigger in (instance_trigger(unwrap(hook)) for hook in hooks):
        for part in trigger.leaves() if isinstance(trigger, Trigger) else ():
            if isinstance(part, EpochEnds):
                part.set_epochs(epochs)


def known_epochs(session: Session) -> Epochs | None:
    """Returns the epochs of a session; None if the number of their steps is not known."""
    found = session.hook_data.get("epochs")
    return found if isinstance(found, Epochs) else None


class EpochEnds(Trigger):
    """Fires at the end of every `epochs`-th epoch; `every(epochs=...)` makes it.

    A `train.Loop` puts the epochs of a session into its `hook_data`, or the reason why they are not known.
    """

    def __init__(self, epochs: int) -> None:
        self._every = epochs
        self._epochs: Epochs | None = None

    def on_new_session(self, session: Session) -> None:
        """Finds the epochs of the session; raises `ValueError` if the number of their steps is not known."""
        self.set_epochs(session.hook_data.get("epochs", _NO_LOOP))

    def set_epochs(self, epochs: Epochs | str) -> None:
        """Sets the epochs; raises `ValueError` for the reason why they are not known."""
        if isinstance(epochs, str):
            raise ValueError(f"{self!r} cannot find the steps at which epochs end: {epochs}.")
        self._epochs = epochs

    def next_step(self, after: int) -> int:
        """Returns the step at which the next such epoch ends; `NEVER` before a session has begun."""
        if self._epochs is None:
            return NEVER
        end = self._epochs.end_after(max(after, 0))
        return end + -self._epochs.number_at(end) % self._every * self._epochs.steps

    def __repr__(self) -> str:
        return f"every(epochs={self._every})"

    def __str__(self) -> str:
        return "each epoch" if self._every == 1 else f"each {self._every} epochs"
