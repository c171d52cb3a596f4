"""The default session of each thread, for `eval` and `run` of tensors and operations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_LOCAL = threading.local()


def sessions() -> list[Any]:
    """Returns the stack of the calling thread's default sessions, the innermost last."""
    if not hasattr(_LOCAL, "sessions"):
        _LOCAL.sessions = []
    return _LOCAL.sessions


def get_default_session() -> Any:
    """Returns the default session of the calling thread, or `None`.

    References:
        `tf.get_default_session`.
    """
    return sessions()[-1] if sessions() else None


@contextlib.contextmanager
def as_default(session: Any) -> Iterator[Any]:
    """Makes a session the calling thread's default."""
    stack = sessions()
    stack.append(session)
    try:
        yield session
    finally:
        stack.remove(session)


def session_for(what: str, session: Any) -> Any:
    """Returns the session given to `eval` or `run`, or else the default one.

    Raises:
        ValueError: There is none.
    """
    found = get_default_session() if session is None else session
    if found is None:
        raise ValueError(
            f"Cannot evaluate {what}: no default session is registered. Use `with tf.Session() as sess:`, or give "
            f"`session=sess`."
        )
    return found
