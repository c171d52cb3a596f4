"""The fetches of hooks in a run, beside those of its caller."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hookline.session.fetches import fetch_key


class HookFetches:
    """The fetches of the hooks of a run; made once for many runs, so that its key is computed once.

    Attributes:
        fetches: For each hook a fetch structure, or None.
        deferred: The indices in `fetches` whose results come as `DeferredResults`.
        rows: The indices whose results have a row for each step, if a run has several.
        once: Whether it was made for a single run, so that nothing need be remembered for it.
        key: Its cache key: objects with equal keys share one plan.

    Example:
        >>> HookFetches(("loss:0", None)).key == HookFetches(("loss:0", None)).key
        True
    """

    __slots__ = ("deferred", "fetches", "key", "once", "rows")
    key: Hashable

    def __init__(
        self,
        fetches: tuple[Any, ...],
        deferred: frozenset[int] = frozenset(),
        rows: frozenset[int] = frozenset(),
        *,
        once: bool = False,
    ) -> None:
        self.fetches, self.deferred, self.rows, self.once = fetches, deferred, rows, once

    def __getattr__(self, name: str) -> Any:
        # Not in the constructor: a fetch that is invalid is reported by the run.
        if name != "key":
            raise AttributeError(name)
        self.key = (self.deferred, self.rows, *[None if item is None else fetch_key(item) for item in self.fetches])
        return self.key
