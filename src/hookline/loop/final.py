"""FinalStateHook: hands the state over when the training has ended in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hookline.hooks import SessionRunHook

if TYPE_CHECKING:
    from hookline.session import Session


class FinalStateHook(SessionRunHook):
    """Gives the session to a function when it is about to be closed in order. Runs `end` only.

    Args:
        finish: The function.
    """

    def __init__(self, finish: Callable[[Session], None]) -> None:
        self._finish = finish

    def end(self, session: Session) -> None:
        """Calls it."""
        self._finish(session)
