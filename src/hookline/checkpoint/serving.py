"""Which savers save the checkpoints of a session."""

from __future__ import annotations

import weakref
from typing import Any

from hookline.checkpoint.saver import Saver

_savers: weakref.WeakKeyDictionary[Any, list[Saver]] = weakref.WeakKeyDictionary()


def serve(session: Any, saver: Saver) -> None:
    """Takes note that a saver saves the checkpoints of a session, for hooks that go back to one."""
    known = _savers.setdefault(session, [])
    if saver not in known:
        known.append(saver)


def savers_of(session: Any) -> tuple[Saver, ...]:
    """Returns the savers that hooks save the checkpoints of a session with."""
    return tuple(_savers.get(session, ()))
