"""Chief-only hooks in the other processes that run in step."""

from __future__ import annotations

from typing import Any

from hookline.monitored.callbacks import override

_OF_THE_CHIEF = ("after_run", "end", "save_last")


def silenced(hook: Any) -> Any:
    """Makes a hook request the same values as on the chief, and do nothing with them; returns it.

    Its `on_trigger`, `after_run` and `end` are called on the chief alone. All other callbacks are called, so that the
    same runs have the same fetches in all processes: the hook's requests must not depend on effects of these three.
    """
    kind = type(hook)
    members: dict[str, Any] = dict.fromkeys(_OF_THE_CHIEF)
    if override(hook, "on_trigger") is not None:
        members["on_trigger"] = lambda self, firing: None
    members |= {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    hook.__class__ = type(kind.__name__, (kind,), members)
    return hook
