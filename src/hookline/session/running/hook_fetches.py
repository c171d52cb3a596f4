"""The fetches of hooks in a run, beside those of its caller; and their deferred results."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from hookline.session.plan.fetches import fetch_key


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


class DeferredResults:
    """The deferred results of a `late` hook's fetches.

    Reading them waits for the device, and runs the host operations of the fetches, which no run has waited for.

    Args:
        compute: Returns the results, in the structure of the fetches. It is called once.
        arrays: The arrays that must arrive first.

    Example:
        >>> import jax.numpy as jnp
        >>> results = DeferredResults.of({"loss": jnp.asarray(0.5)})
        >>> results.get()
        {'loss': Array(0.5, dtype=float32, weak_type=True)}
    """

    __slots__ = ("_arrays", "_compute", "_is_computed", "_results")

    def __init__(self, compute: Callable[[], Any], arrays: list[Any]) -> None:
        self._compute = compute
        self._arrays = arrays
        self._results: Any = None
        self._is_computed = False

    @classmethod
    def of(cls, results: Any) -> DeferredResults:
        """Wraps results that need no host operation; they are ready when the arrays in them are."""
        return cls(lambda: results, [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)])

    def part(self, place: int) -> DeferredResults:
        """Returns one item of these results, which arrives with all of them."""
        return DeferredResults(lambda: self.get()[place], self._arrays)

    def then(self, function: Callable[[Any], Any]) -> DeferredResults:
        """Returns the result of a function on these results, applied when they are read."""
        return DeferredResults(lambda: function(self.get()), self._arrays)

    def is_ready(self) -> bool:
        """Returns whether the results can be read without waiting for the device."""
        # Not `all`: a generator costs more than the arrays, of which there are few.
        for array in self._arrays:  # noqa: SIM110
            if not array.is_ready():
                return False
        return True

    def get(self) -> Any:
        """Returns the results.

        Raises:
            BaseException: The error of a host operation, or of the run on the device.
        """
        if not self._is_computed:
            # Raises the error of the run: a failed array is ready, too. Parts of these results need not wait again.
            for array in self._arrays:
                array.block_until_ready()
            self._arrays.clear()
            self._results = self._compute()
            self._is_computed = True
        return self._results
