"""Deferred results: the fetches of a hook, read when they have arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


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
