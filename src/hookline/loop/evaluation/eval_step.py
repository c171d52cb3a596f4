"""EvalStep: evaluates one batch, or several in one compiled loop; MetricTotals: combines the metrics of all batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from hookline import log
from hookline.coordination import process_group
from hookline.graph import placement
from hookline.loop.metrics import (
    Accumulator,
    Mergeable,
    WeightedSum,
    find_accumulators,
    flatten_metrics,
    reset_where,
    warn_left_out,
)
from hookline.loop.step.leaf_types import InvalidStep, is_nnx
from hookline.loop.step.state_forms import NnxState, PytreeState
from hookline.loop.step.step import step_errors
from hookline.loop.step_call import StepCall, function_name, required_parameters
from hookline.session.program.step_loop import counted_loop

_logger = log.get_logger(__name__)


MEANS, SUMS, MERGED = "means", "sums", "merged"
"""How metrics are combined: means weighted by examples, quotients of sums, objects with `merge()`."""

# Names of counts by which other metrics may have to be divided.
_COUNTS = ("count", "counts", "weight", "weights", "denominator", "normalizer", "num_examples", "num_tokens")
# The last words of the names of metrics whose value for a data set is not the mean over its batches.
_NO_MEANS = ("perplexity", "ppl", "auc", "auroc", "f1", "precision", "recall", "rmse", "std", "variance", "bleu", "r2")


class MetricTotals:
    """Combines the metrics of one evaluation, batch by batch.

    Args:
        who: The evaluation, for messages.
        merged: The tree structures of the objects to merge, by their names in the result of the function.
        accumulated: The names of the metrics that accumulate in the state: their last values are the result.
    """

    def __init__(self, who: str, merged: Mapping[str, Any], accumulated: Collection[str]) -> None:
        self._who, self._structures, self._accumulated = who, merged, accumulated
        self._means: dict[str, list[Any]] = {}
        self._sums: dict[str, list[Any]] = {}
        self._merged: dict[str, Any] = {}

    def add(self, row: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds the values of one batch, as arrays on the host.

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
                    f"more. If the two values are not a sum and its weight, give each a name of its own, in a dict."
                )
            total = np.where(weight == 0, 0.0, total)  # The mean over no examples may be NaN.
            before = self._sums.setdefault(name, [np.zeros_like(total), np.zeros_like(weight)])
            if before[0].shape != total.shape:
                raise self._shape_error(name, {before[0].shape, total.shape})
            before[0], before[1] = before[0] + total, before[1] + weight
        for name, leaves in row.get(MERGED, {}).items():
            found = self._structures[name].unflatten(leaves)
            # The first object is not merged with an empty one: merging an empty mean may give NaN.
            self._merged[name] = self._merged[name].merge(found) if name in self._merged else found

    def result(self, weights: list[float]) -> dict[str, Any]:
        """Returns the value of each metric: a float, or an array of NumPy.

        Args:
            weights: The numbers of examples of the batches, for means.

        Raises:
            ValueError: A metric has no value: its shape differs between batches, or its weights are all 0.
            Exception: A `compute()` raised it.
        """
        means = {name: self._mean(name, values, weights) for name, values in self._means.items()}
        sums = {name: self._quotient(name, *each) for name, each in self._sums.items()}
        # A hand-written loop computes them from JAX arrays, too; so the values are the same.
        objects = {name: jax.tree.map(jnp.asarray, found) for name, found in self._merged.items()}
        try:
            found, left_out = flatten_metrics({**means, **sums, **objects})
        except Exception as error:
            error.add_note(f"hookline: while {self._who} computed the metrics of all batches")
            raise
        warn_left_out(self._who, "the merged metrics", left_out)
        return {name: float(value) if np.shape(value) == () else np.asarray(value) for name, value in found.items()}

    def _mean(self, name: str, values: list[Any], weights: list[float]) -> Any:
        if len(shapes := {value.shape for value in values}) > 1:
            raise self._shape_error(name, shapes)
        if name in self._accumulated:
            return values[-1]
        total: Any = 0.0
        for value, weight in zip(values, weights, strict=False):
            if weight:  # A mean over no examples may be NaN.
                total += weight * value.astype("float64")
        return np.asarray(total / sum(weights))

    def _quotient(self, name: str, total: Any, weight: Any) -> Any:
        if not np.any(weight):
            raise ValueError(f"{self._who}: the metric {name!r} is a sum whose weight is 0 in each batch.")
        with np.errstate(invalid="ignore"):  # A class without examples has no mean.
            return np.asarray(total / weight)

    def _shape_error(self, name: str, shapes: Collection[Any]) -> ValueError:
        return ValueError(
            f"{self._who}: the metric {name!r} has the shapes {sorted(shapes)} in different batches, so it has no "
            f"mean. Reduce it over the examples: return the mean of the batch."
        )

    def log_combinations(self) -> None:
        """Logs how each metric was combined, and warns of metrics that should not be averaged, by their names."""
        if not process_group.is_primary():
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
                "%s: metrics that look like numbers of examples or tokens are averaged over the batches: %s. If the "
                "other metrics are sums over those, return pairs: {%r: (%s, %s)}.",
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
        combinations = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items() if names)
        _logger.info("%s: %s.", self._who, combinations)


def _last_word(name: str) -> str:
    return name.replace("/", "_").rpartition("_")[2].lower()


NO_BATCH = ()
"""The batch for a function that takes none."""


class EvalStep:
    """Calls an evaluation function with the state, or with parts of it, and a batch.

    The parameters of the function are matched by name to the parts of the state, as in the train step; if no name
    matches, it gets the first parts, as many as it requires. Metrics in the state begin empty. NNX metrics accumulate
    over the batches, because their arrays are carried from one call to the next. Metrics in a pytree are reset for each
    batch, because a returned value cannot be recognised as one of them; `MetricTotals` merges the returned ones.

    Args:
        who: The caller, for messages.
        function: The function.
        form: The form of the state.
        batch: The spec of a batch.
        mesh: The mesh of the state.

    Attributes:
        accumulated: The names of the metrics in the state; known after a trace.
        merged: The tree structures of the returned objects to merge; known after a trace.
        left_out: The returned values that are no metrics, with the reasons.

    Raises:
        TypeError: The parameters of the function do not fit.
    """

    def __init__(
        self, who: str, function: Any, form: PytreeState | NnxState, batch: Any, mesh: Mesh | None = None
    ) -> None:
        self.name = self.__name__ = function_name(function)
        self._who, self._form, self._mesh = who, form, mesh
        self._parts = _parts(who, function, form, _batch_or_none(batch))
        self._call = StepCall(who, function, self._parts, allow_key=False)
        self._call.bind_batch(_batch_or_none(batch))
        self.accumulated: frozenset[str] = frozenset()
        self.merged: dict[str, Any] = {}
        self.left_out: dict[str, str] = {}

    def initial_carry(self) -> list[Any]:
        """Returns the first carry: a true flag, and zeros like the metrics in the state; empty without metrics."""
        leaves = [
            leaf for found in self._accumulators(self._state_arguments(self._form.values)) for leaf in found.leaves()
        ]
        if not leaves:
            return []
        arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        if self._mesh is not None:
            arrays = [jax.device_put(array, jax.NamedSharding(self._mesh, jax.P())) for array in arrays]
        return [np.True_, *arrays]

    def __call__(self, values: Any, batch: Any, *carry: Any) -> dict[str, Any]:
        """Returns a batch's values as `rows`, for `MetricTotals`, and arrays of metrics in the state as `carried`."""
        given = self._state_arguments(values)
        with step_errors(self._who, self.name):
            if isinstance(self._form, PytreeState) and self._form.accumulates:
                given = reset_where(given, True)
            if carry:
                is_first, *leaves = carry
                for found in self._accumulators(given):
                    found.replace_leaves([leaves.pop(0) for _ in found.leaves()])
                given = reset_where(given, is_first)
        returned = self._call(given, _batch_or_none(batch))
        with step_errors(self._who, self.name):
            self._refuse_state(given, returned)
            after = self._accumulators(given)
            found, self.left_out = flatten_metrics(returned, after, over_batches=True)
            self.accumulated = frozenset(found) - frozenset(flatten_metrics(returned, over_batches=True)[0])
        carried = [jnp.asarray(leaf, leaf.dtype) for metric in after for leaf in metric.leaves()]
        rows: dict[str, dict[str, Any]] = {MEANS: {}, SUMS: {}, MERGED: {}}
        for name, value in found.items():
            if isinstance(value, Mergeable):
                leaves, self.merged[name] = jax.tree.flatten(value.value)
                rows[MERGED][name] = [self._replicated(leaf) for leaf in leaves]
            elif isinstance(value, WeightedSum):
                rows[SUMS][name] = [jnp.asarray(part) for part in value]
            else:
                rows[MEANS][name] = jnp.asarray(value)
        return {"rows": rows, "carried": carried}

    def __str__(self) -> str:
        return str(self._call)

    def looped(self, max_batches: int) -> Callable[..., dict[str, Any]]:
        """Returns a function that evaluates up to `max_batches` batches of a block in one compiled loop.

        Each of its values has one row for each batch.
        """

        def evaluate_rows(values: Any, block: Any, count: Any, *carry: Any) -> dict[str, Any]:
            def one(index: Any, carried: Sequence[Any]) -> dict[str, Any]:
                batch = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), block)
                return self(values, batch, *((carry[0] & (index == 0), *carried) if carry else ()))

            def body(index: Any, before: Any) -> Any:
                rows, carried = before
                found = one(index, carried)
                rows = jax.tree.map(lambda row, value: row.at[index].set(value), rows, found["rows"])
                return rows, found["carried"]

            like = jax.eval_shape(one, 0, carry[1:])["rows"]
            rows = jax.tree.map(lambda value: jnp.zeros((max_batches, *value.shape), value.dtype), like)
            rows, carried = counted_loop(count, max_batches, body, (rows, list(carry[1:])))
            return {"rows": rows, "carried": carried}

        evaluate_rows.__name__ = self.name
        return evaluate_rows

    def _replicated(self, leaf: Any) -> jax.Array:
        """Returns an array that is replicated over the SPMD processes, if there are several."""
        array = jnp.asarray(leaf)
        if self._mesh is None or not placement.is_spmd():
            return array
        sharding = jax.NamedSharding(self._mesh, jax.P())
        return (
            jax.reshard(array, sharding)
            if self._mesh.explicit_axes
            else jax.lax.with_sharding_constraint(array, sharding)
        )

    def _state_arguments(self, values: Any) -> tuple[Any, ...]:
        state = self._form.to_state(values)
        return tuple(state if key is None else state[key] for key in self._parts.values())

    def _accumulators(self, given: tuple[Any, ...]) -> list[Accumulator]:
        """Returns the metrics in NNX objects, which the function changes in place."""
        named = dict(zip(self._parts, given, strict=True))
        return find_accumulators(named) if isinstance(self._form, NnxState) else []

    def _refuse_state(self, given: tuple[Any, ...], returned: Any) -> None:
        items = returned if type(returned) is tuple else (returned,)
        kinds = [jax.tree.structure(part) for part in given]
        parts = [kind for kind in kinds if not jax.tree_util.treedef_is_leaf(kind)]
        if any(map(is_nnx, jax.tree.leaves(returned, is_leaf=is_nnx))) or any(
            jax.tree.structure(item) in parts for item in items
        ):
            raise InvalidStep(
                "an evaluation returns its metrics only, but it returned the state or a part of it, like a train step"
            )


def _parts(who: str, function: Any, form: PytreeState | NnxState, batch: Any) -> dict[str, Any]:
    """Maps parameters to the keys of their parts of the state.

    Raises:
        TypeError: No name matches, and the number of parameters does not determine the number of parts.
    """
    names = required_parameters(who, function)
    if names is None:
        return dict(form.parts)
    keys = list(form.parts.values())
    if keys == [None]:
        return {(names or ["the state"])[0]: None}
    by_name = {name: form.parts[name] for name in names if name in form.parts}
    if by_name:
        return by_name
    if batch is None:
        counts = {min(len(names), len(keys))}
    else:  # A tuple may be one argument, or one for each of its parts.
        counts = {len(names) - 1, len(names) - (len(batch) if isinstance(batch, tuple) else 1)}
    counts &= {*range(1, len(keys) + 1)}
    if len(counts) != 1:
        raise TypeError(
            f"{who}: {function_name(function)} is called with parts of the state ({', '.join(form.parts)}) and a "
            f"batch; it requires {', '.join(names) or 'nothing'}. Give its parameters the names of the train step's."
        )
    return dict(zip(names, keys[: counts.pop()], strict=False))


def _batch_or_none(batch: Any) -> Any:
    return None if isinstance(batch, tuple) and not batch else batch
