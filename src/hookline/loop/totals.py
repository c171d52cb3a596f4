"""Totals: the metrics of an evaluation, combined over its batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.coordination import peers
from hookline.loop.metrics import flat, warn_left_out

_logger = log.of(__name__)

MEANS, SUMS, MERGED = "means", "sums", "merged"
"""How metrics are combined: means weighted by examples, quotients of sums, objects with `merge()`."""

# Names of what the others are to be divided by, if they are sums.
_COUNTS = ("count", "counts", "weight", "weights", "denominator", "normalizer", "num_examples", "num_tokens")
# The last words of names whose metric of a set is no mean over its batches.
_NO_MEANS = ("perplexity", "ppl", "auc", "auroc", "f1", "precision", "recall", "rmse", "std", "variance", "bleu", "r2")


class Totals:
    """The metrics of one evaluation, batch by batch.

    Args:
        who: The evaluation, for messages.
        merged: The structures of the objects that are merged, by the names of their places.
        accumulated: The names of the metrics that accumulate in the state: their last values count.
    """

    def __init__(self, who: str, merged: Mapping[str, Any], accumulated: Collection[str]) -> None:
        self._who, self._structures, self._accumulated = who, merged, accumulated
        self._means: dict[str, list[Any]] = {}
        self._sums: dict[str, list[Any]] = {}
        self._merged: dict[str, Any] = {}

    def add(self, row: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes in the values of one batch, as arrays on the host.

        Raises:
            ValueError: The weight of a sum is negative or not finite; or a sum has another shape than before.
        """
        for name, value in row.get(MEANS, {}).items():
            self._means.setdefault(name, []).append(value)
        for name, (total, weight) in row.get(SUMS, {}).items():
            total, weight = np.asarray(total, "float64"), np.asarray(weight, "float64")
            if not np.all((weight >= 0) & (weight < np.inf)):
                raise ValueError(
                    f"{self._who}: the metric {name!r} is a pair, (sum, weight), whose weight is "
                    f"{weight.min() if weight.ndim else weight.item():g} for a batch: it must be a finite number, 0 or "
                    f"more. Give values that are no sum and weight names of their own, in a dict."
                )
            total = np.where(weight == 0, 0.0, total)  # The mean over no examples may be NaN.
            before = self._sums.setdefault(name, [np.zeros_like(total), np.zeros_like(weight)])
            if before[0].shape != total.shape:
                raise self._other_shapes(name, {before[0].shape, total.shape})
            before[0], before[1] = before[0] + total, before[1] + weight
        for name, leaves in row.get(MERGED, {}).items():
            found = self._structures[name].unflatten(leaves)
            # Not onto an empty one: to merge an empty mean may be NaN.
            self._merged[name] = self._merged[name].merge(found) if name in self._merged else found

    def result(self, weights: list[float]) -> dict[str, Any]:
        """Returns the value of each metric: a float, or an array of NumPy.

        Args:
            weights: The numbers of examples of the batches, for means.

        Raises:
            ValueError: A metric has no value: its shape differs between batches, or its weights are all 0.
            Exception: A `compute()` has raised it.
        """
        means = {name: self._mean(name, values, weights) for name, values in self._means.items()}
        sums = {name: self._quotient(name, *each) for name, each in self._sums.items()}
        # As the objects are where a loop is written by hand, so that their values are the same.
        objects = {name: jax.tree.map(jnp.asarray, found) for name, found in self._merged.items()}
        try:
            found, left_out = flat({**means, **sums, **objects})
        except Exception as error:
            error.add_note(f"hookline: while {self._who} computed the metrics of all batches")
            raise
        warn_left_out(self._who, "the merged metrics", left_out)
        return {name: float(value) if np.shape(value) == () else np.asarray(value) for name, value in found.items()}

    def _mean(self, name: str, values: list[Any], weights: list[float]) -> Any:
        if len(shapes := {value.shape for value in values}) > 1:
            raise self._other_shapes(name, shapes)
        if name in self._accumulated:
            return values[-1]
        total: Any = 0.0
        for value, weight in zip(values, weights, strict=False):
            if weight:  # The mean over no examples is NaN.
                total += weight * value.astype("float64")
        return np.asarray(total / sum(weights))

    def _quotient(self, name: str, total: Any, weight: Any) -> Any:
        if not np.any(weight):
            raise ValueError(f"{self._who}: the metric {name!r} is a sum whose weight is 0 in each batch.")
        with np.errstate(invalid="ignore"):  # A class without examples has no mean.
            return np.asarray(total / weight)

    def _other_shapes(self, name: str, shapes: Collection[Any]) -> ValueError:
        return ValueError(
            f"{self._who}: the metric {name!r} has the shapes {sorted(shapes)} in different batches, so it has no "
            f"mean. Reduce it over the examples: return the mean of the batch."
        )

    def explain(self) -> None:
        """Logs how each metric was combined, and warns of names that are known to be no means over batches."""
        if not peers.speaks():
            return
        plain = sorted(set(self._means) - set(self._accumulated))
        count = len(next(iter(self._means.values()), ()))
        doubtful = [name for name in plain if count > 1 and _last_word(name) in _NO_MEANS]
        if doubtful:
            _logger.warning(
                "%s: %s is the mean of the values of %d batches, which is not its value for the whole set. Return a "
                "pair (sum, weight), or a metric with merge() and compute(), such as those of clu, or of NNX in the "
                "state.",
                self._who,
                ", ".join(doubtful),
                count,
            )
        counts = [name for name in plain if name.rpartition("/")[2].lower() in _COUNTS]
        if counts and len(plain) > len(counts):
            name = next(name for name in plain if name not in counts)
            _logger.warning(
                "%s: the mean of the batches is taken of %s, which is the number of examples or tokens by its name. If "
                "the other metrics are sums over those, return pairs: {%r: (%s, %s)}.",
                self._who,
                ", ".join(counts),
                name,
                name,
                counts[0],
            )
        ways = {
            "the mean of the batches, weighted by their examples": plain,
            "a sum divided by the sum of its weights": sorted(self._sums),
            "computed from the merged state of all batches": sorted(
                [*self._accumulated, *(name or "the returned object" for name in self._merged)]
            ),
        }
        said = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items() if names)
        _logger.info("%s: %s.", self._who, said)


def _last_word(name: str) -> str:
    return name.replace("/", "_").rpartition("_")[2].lower()
