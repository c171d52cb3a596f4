"""Counts what this process does beside runs that write variables, so that `WatchdogHook` can tell work from a hang.

Code on slow paths adds 1 to `count` wherever a part of a longer work is done: a batch is read, a leaf is copied.
Threads may overwrite each other's additions: what matters is that the count changes.
"""

from __future__ import annotations

count = 0
