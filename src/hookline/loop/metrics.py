"""Finds the metrics that a step returns, and those that accumulate in its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.loop.step.leaf_types import InvalidStep, is_nnx
from hookline.signals import interrupts

_logger = log.get_logger(__name__)


class Accumulator(NamedTuple):
    """A metric that accumulates in a state, with its name there."""

    name: str
    value: Any

    def leaves(self) -> list[Any]:
        """Returns its arrays."""
        return jax.tree.leaves(_as_pytree(self.value))

    def replace_leaves(self, leaves: list[Any]) -> Any:
        """Replaces its arrays; an NNX object is changed in place."""
        held = _as_pytree(self.value)
        found = jax.tree.unflatten(jax.tree.structure(held), leaves)
        if not is_nnx(self.value):
            return found
        from flax import nnx

        nnx.update(self.value, found)
        return self.value

    def empty_leaves(self) -> list[Any]:
        """Returns its arrays after a reset; an NNX object is changed in place.

        Raises:
            InvalidStep: A reset changes their shapes.
        """
        like = self.leaves()
        if is_nnx(self.value):
            self.value.reset()
            empty = self.leaves()
        else:
            kind = type(self.value)
            empty = jax.tree.leaves(kind.empty() if hasattr(kind, "empty") else self.value.reset())
        if [np.shape(leaf) for leaf in empty] != [np.shape(leaf) for leaf in like]:
            raise InvalidStep(
                f"the {type(self.value).__name__} at {self.name!r} of the state has other shapes after a reset, so a "
                f"compiled step cannot reset it. Return the metrics of one batch instead"
            )
        return [jnp.asarray(new, old.dtype) for new, old in zip(empty, like, strict=True)]


def has_compute(value: Any) -> bool:
    """Returns whether a value is a metric with `compute()`."""
    return callable(getattr(type(value), "compute", None))  # Of the type: nnx.Rngs returns a stream for any name.


def is_accumulator(value: Any) -> bool:
    """Returns whether a value is a metric that accumulates and can be reset, such as those of NNX and `clu`."""
    if is_nnx(value):
        kinds = type(value).__mro__
        return any(kind.__module__.startswith("flax.nnx") and kind.__name__ == "Metric" for kind in kinds)
    return _can_update(value) and _has(value, "reset", "empty")


def is_mergeable(value: Any) -> bool:
    """Returns whether a value is a pytree with `merge()` and `compute()`, such as the metrics of `clu`."""
    is_known = has_compute(value) and _has(value, "merge") and not is_nnx(value)
    return is_known and not jax.tree_util.treedef_is_leaf(jax.tree.structure(value))


def log_not_resettable(state: Any) -> None:
    """Logs objects of a pytree that look like metrics but cannot be reset, and so count as parts of the model."""
    for path, leaf in jax.tree.leaves_with_path(state, is_leaf=_can_update):
        if _can_update(leaf) and not is_nnx(leaf) and not is_accumulator(leaf):
            _logger.info(
                "Loop: the %s at %r of the state counts as a part of the model, not as a metric: it has compute(), but "
                "neither reset() nor empty().",
                type(leaf).__name__,
                jax.tree_util.keystr(path, simple=True, separator="/"),
            )


def _can_update(value: Any) -> bool:
    return has_compute(value) and _has(value, "merge", "update")


def _has(value: Any, *methods: str) -> bool:
    return any(callable(getattr(type(value), name, None)) for name in methods)


def find_accumulators(state: Any) -> list[Accumulator]:
    """Returns the metrics that accumulate in a state, without metrics nested in others."""
    return list(_find_in_nnx(state)) or [
        Accumulator(_last_key(path), leaf)
        for path, leaf in jax.tree.leaves_with_path(state, is_leaf=is_accumulator)
        if is_accumulator(leaf)
    ]


def _find_in_nnx(state: Any) -> Iterator[Accumulator]:
    objects = [leaf for leaf in jax.tree.leaves(state, is_leaf=is_nnx) if is_nnx(leaf)]
    if not objects:
        return
    from flax import nnx

    found = {path: node for path, node in nnx.iter_graph(state) if is_accumulator(node)}
    for path in sorted(found, key=lambda path: [str(key) for key in path]):
        if not any(path[:end] in found for end in range(len(path))):
            yield Accumulator(str(path[-1]) if path else "", found[path])


def _last_key(path: Any) -> str:
    return jax.tree_util.keystr(path[-1:], simple=True)


def map_accumulators(state: Any, change: Callable[[Accumulator], list[Any]]) -> Any:
    """Returns a state with changed arrays in its metrics; NNX objects are changed in place."""
    if any(map(is_nnx, jax.tree.leaves(state, is_leaf=is_nnx))):
        for accumulator in find_accumulators(state):
            accumulator.replace_leaves(change(accumulator))
        return state

    def one(path: Any, leaf: Any) -> Any:
        if not is_accumulator(leaf):
            return leaf
        accumulator = Accumulator(_last_key(path), leaf)
        return accumulator.replace_leaves(change(accumulator))

    return jax.tree.map_with_path(one, state, is_leaf=is_accumulator)


def reset_where(state: Any, where: Any) -> Any:
    """Resets the metrics in a state where a condition holds.

    Raises:
        InvalidStep: A reset changes the shapes of a metric.
    """

    def reset(accumulator: Accumulator) -> list[Any]:
        before = accumulator.leaves()
        return [jnp.where(where, new, old) for new, old in zip(accumulator.empty_leaves(), before, strict=True)]

    return map_accumulators(state, reset)


def _as_pytree(value: Any) -> Any:
    if not is_nnx(value):
        return value
    from flax import nnx

    return nnx.state(value)


DEFAULT_NAME = "loss"
"""The name of a scalar that a step returns without a name, and of the first of several."""
_AUX = "aux"


class WeightedSum(NamedTuple):
    """A sum over examples or tokens, and their weight; the metric is the quotient."""

    total: Any
    weight: Any


class Mergeable(NamedTuple):
    """An object with `merge()` and `compute()`, such as those of `clu`; `compute()` is called on the merged object."""

    value: Any


def flatten_metrics(
    metrics: Any, accumulated: list[Accumulator] | None = None, *, over_batches: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns metrics by name, with slashes for nested ones; and the reasons for left-out values.

    Args:
        metrics: A dict, named tuple or dataclass, possibly nested, of numbers, arrays and objects with `compute()`. Or
            a tuple, `(loss, aux)`, as from `jax.value_and_grad(has_aux=True)`: `aux` is a dict, whose names are kept,
            or something without names. Or one number, which is called `loss`.
        accumulated: The metrics in the state; their `compute()` is called.
        over_batches: Whether the caller combines the values of several batches. Then a pair `(sum, weight)` under a
            name becomes a `WeightedSum`, and an object with `merge()` a `Mergeable`, under its name in `metrics`, which
            is empty if `metrics` is that object.

    Raises:
        InvalidStep: Two metrics have the same name.

    Example:
        >>> flatten_metrics({"loss": 0.5, "top": {"1": 0.25}})
        ({'loss': 0.5, 'top/1': 0.25}, {})
        >>> [flatten_metrics((0.5, more))[0] for more in ({"accuracy": 0.25}, 0.25, (0.25, 0.75))]
        [{'loss': 0.5, 'accuracy': 0.25}, {'loss': 0.5, 'aux': 0.25}, {'loss': 0.5, 'aux/0': 0.25, 'aux/1': 0.75}]
        >>> flatten_metrics({"loss": 0.5, "note": "low"})
        ({'loss': 0.5}, {'note': "is 'low', which is text; give a number for it"})
        >>> flatten_metrics({"loss": (3.0, 4)}, over_batches=True)[0]
        {'loss': WeightedSum(total=3.0, weight=4)}
    """
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}

    def take(named: Iterator[tuple[str, Any]], prefix: str | None = None) -> None:
        for name, value in named:
            name = name or ("" if isinstance(value, Mergeable) else DEFAULT_NAME)
            if name in found and prefix is not None:
                name = f"{prefix}/{name}".removesuffix("/")
            if name in found or name in left_out:
                raise InvalidStep(f"two metrics are called {name!r}. Give one of them another name")
            value = _as_array(value)
            reason = _rejection(value)
            if reason is None:
                found[name] = value
            else:
                left_out[name] = reason

    if _is_sequence(metrics) and metrics:
        take(_iter_metrics("", metrics[0], over_batches))
        rest = metrics[1:]
        for number, part in enumerate(rest):
            name = _AUX if len(rest) == 1 else f"{_AUX}/{number}"
            take(_iter_metrics("" if _named_parts(part) and not _is_sequence(part) else name, part, over_batches), name)
    elif metrics is not None:
        take(_iter_metrics("", metrics, over_batches))
    for accumulator in accumulated or ():
        value = _compute(accumulator.value)
        take(_iter_metrics("" if _named_parts(value) else accumulator.name, value), accumulator.name)
    return found, left_out


def warn_left_out(who: str, name: str, left_out: Mapping[str, str]) -> None:
    """Warns of returned values that are no metrics, with the reasons."""
    if left_out:
        reasons = "; ".join(f"{metric!r} {reason}" for metric, reason in left_out.items())
        _logger.warning("%s: %s: some metrics are no numbers, and are left out: %s.", who, name, reasons)


class _TracerRead(str):
    """The reason why the value of a metric could not be computed."""


def _iter_metrics(
    name: str, value: Any, over_batches: bool = False, is_part: bool = False
) -> Iterator[tuple[str, Any]]:
    if over_batches and is_mergeable(value):
        yield name, Mergeable(value)
        return
    if over_batches and is_part and _is_sum(value):
        yield name, WeightedSum(*map(_as_array, value))
        return
    if has_compute(value):
        computed = _compute(value)
        if isinstance(computed, _TracerRead):
            parts = {
                key: part for key, part in (_named_parts(value) or {}).items() if has_compute(part) and key[:1] != "_"
            }
            value = parts or computed
        else:
            value = computed
    parts = _named_parts(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts.items():
        yield from _iter_metrics(f"{name}/{key}" if name else str(key), part, over_batches, not _is_sequence(value))


def _compute(value: Any) -> Any:
    try:
        return interrupts.call_user_function(value.compute)
    except jax.errors.JAXTypeError:
        return _TracerRead(
            f"is a {type(value).__name__} whose compute() reads values, but the step is compiled, and has values only "
            f"when it runs; give a metric that jax.numpy can compute: a mean, a sum"
        )


def _is_sequence(value: Any) -> bool:
    return type(value) in (tuple, list)


def _named_parts(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._asdict()  # type: ignore[attr-defined]
    if _is_sequence(value):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _is_sum(value: Any) -> bool:
    """Returns whether a value is a pair (sum, weight): of the same shape, or the weight is a scalar."""
    if type(value) is not tuple or len(value) != 2 or any(_rejection(_as_array(part)) for part in value):
        return False
    return np.shape(value[1]) in ((), np.shape(value[0]))


def _as_array(value: Any) -> Any:
    if not isinstance(value, jax.Array) and hasattr(type(value), "__jax_array__"):
        return value.__jax_array__()  # An NNX variable, such as the learning rate of an optimizer.
    return value


def _rejection(value: Any) -> str | None:
    """Returns the reason why a value is no metric, and the remedy; `None` if it is one."""
    if isinstance(value, WeightedSum | Mergeable):
        return None
    if isinstance(value, _TracerRead):
        return str(value)
    if value is None or isinstance(value, str | bytes):
        return f"is {value!r}{', which is text' if value is not None else ''}; give a number for it"
    if not isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        return f"is of the class {type(value).__name__}; give numbers of it"
    if 0 in [size for size in np.shape(value) if isinstance(size, int)]:
        return f"is an array of the shape {np.shape(value)}, without elements"
    dtype = getattr(value, "dtype", None) or jnp.result_type(value)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return f"is of dtype {dtype}; jax.random.key_data gives its numbers"
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return "is complex; take its absolute value"
    return (
        None
        if jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
        else f"is of dtype {dtype}; give numbers"
    )
