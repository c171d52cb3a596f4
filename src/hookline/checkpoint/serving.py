"""The savers that save a session's checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hookline.checkpoint.saver import Saver

SaveNow = Callable[[Any], None]
"""Saves a session as it is, unless that step is saved."""

_savers: weakref.WeakKeyDictionary[Any, dict[Saver, SaveNow]] = weakref.WeakKeyDictionary()


def serve(session: Any, saver: Saver, save_now: SaveNow) -> None:
    """Records that a saver saves a session's checkpoints, for hooks that roll back to one or want one."""
    _savers.setdefault(session, {})[saver] = save_now


def savers_of(session: Any) -> tuple[Saver, ...]:
    """Returns the savers with which hooks save a session's checkpoints."""
    return tuple(_savers.get(session, ()))


def save_with(saver: Saver, session: Any) -> None:
    """Has the hook that saves the checkpoints of a session with this saver save now, unless that step is saved."""
    _savers[session][saver](session)
