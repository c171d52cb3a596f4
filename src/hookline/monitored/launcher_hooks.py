"""The hooks that `hookline launch` adds to the monitored sessions of a script."""

from __future__ import annotations

from typing import Any

from hookline.hooks import WatchdogHook

_watched: tuple[float, int] | None = None


def watch_for_stalls(stall_secs: float, pipe: int) -> None:
    """Makes each monitored session end the process on a stall, and send heartbeats to the launcher meanwhile."""
    global _watched
    _watched = stall_secs, pipe


def launcher_hooks() -> list[Any]:
    """Returns new hooks for a session."""
    return [] if _watched is None else [WatchdogHook.of_launcher(*_watched)]
