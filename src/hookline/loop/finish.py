"""Finish: gives a loop its session at the beginning and at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookline.hooks import SessionRunHook

if TYPE_CHECKING:
    from hookline.session import Session


class Finish(SessionRunHook):
    """Gives a loop its session; it is the last hook, so that no other hook makes steps after it.

    Args:
        begin: Called with each new session.
        finish: Called with the session that ends, and the global step at which the training began.
    """

    def __init__(self, begin: Callable[[Session], None], finish: Callable[[Session, int], None]) -> None:
        self._begin, self._finish = begin, finish
        self._first_step: int | None = None  # A recovery does not move it.

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Notes the first step."""
        self._first_step = session.global_step if self._first_step is None else self._first_step
        self._begin(session)

    def end(self, session: Session) -> None:
        """Gives the state away."""
        assert self._first_step is not None, "The session was created."
        self._finish(session, self._first_step)
