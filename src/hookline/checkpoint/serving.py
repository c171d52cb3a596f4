"""The savers that save a session's checkpoints."""

from __future__ import annotations

import weakref
from typing import Any

from hookline.checkpoint.saver import Saver

_savers: weakref.WeakKeyDictionary[Any, list[Saver]] = weakref.WeakKeyDictionary()


def serve(session: Any, saver: Saver) -> None:
    """Records that a saver saves a session's checkpoints, for hooks that roll back to one."""
    known = _savers.setdefault(session, [])
    if saver not in known:
        known.append(saver)


def savers_of(session: Any) -> tuple[Saver, ...]:
    """Returns the savers with which hooks save a session's checkpoints."""
    return tuple(_savers.get(session, ()))
