"""Threads that start, stop and fail together: `Coordinator` and `LooperThread`."""

from __future__ import annotations

from hookline.coordination.coordinator import Coordinator
from hookline.coordination.looper_thread import LooperThread

__all__ = ["Coordinator", "LooperThread"]
