"""Threads that start, stop and fail together: `Coordinator` and `LooperThread`."""

from __future__ import annotations

from hookline.coordination.coordinator import Coordinator, LooperThread
