"""Hooks with other callbacks: those of the chief alone, in the other processes that run in step."""

from __future__ import annotations

from typing import Any

from hookline.monitored.callbacks import override

_OF_THE_CHIEF = ("after_run", "end", "save_last")


def silenced(hook: Any) -> Any:
    """Makes a hook request the same values as on the chief, and do nothing with them; returns it.

    Its `on_trigger`, `after_run` and `end` are called on the chief alone. All other callbacks are called, so that the
    same runs have the same fetches in all processes: the hook's requests must not depend on effects of these three.
    """
    callbacks: dict[str, Any] = dict.fromkeys(_OF_THE_CHIEF)
    if override(hook, "on_trigger") is not None:
        callbacks["on_trigger"] = lambda firing: None
    return with_callbacks(hook, callbacks)


def with_callbacks(hook: Any, callbacks: dict[str, Any]) -> Any:
    """Gives a hook other callbacks and returns it; if it can have no attributes, one of the same name in its place."""
    if hasattr(hook, "__dict__"):
        vars(hook).update(callbacks)
        return hook
    kind = type(hook)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (_StandIn,), named)(hook, callbacks)


class _StandIn:
    def __init__(self, hook: Any, callbacks: dict[str, Any]) -> None:
        vars(self).update(callbacks, _hook=hook)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_hook"], name)
