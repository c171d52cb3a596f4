"""The metrics of a step, as numbers and arrays by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.loop.accumulators import Accumulator, is_computed, merges
from hookline.loop.leaf_types import InvalidStep

_logger = log.of(__name__)

ALONE = "loss"
"""The name of a number that a step returns without a name, and of the first of several."""
_AUX = "aux"


class Sum(NamedTuple):
    """A sum over examples or tokens and their weight, whose quotient is the metric."""

    total: Any
    weight: Any


class Merged(NamedTuple):
    """An object with `merge()` and `compute()`, as of `clu`: the metric is computed from that of all batches."""

    value: Any


def flat(
    metrics: Any, accumulated: list[Accumulator] | None = None, *, over_batches: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns metrics by name, and the reasons for leaving out others; the name of a nested one has slashes.

    Args:
        metrics: A dict, named tuple or dataclass, possibly nested, of numbers, arrays and objects with `compute()`. Or
            a tuple, `(loss, aux)`, as from `jax.value_and_grad(has_aux=True)`: `aux` is a dict, whose names are kept,
            or something without names. Or one number, which is called `loss`.
        accumulated: The metrics in the state, which are computed.
        over_batches: Whether batches follow whose values are combined. Then a pair `(sum, weight)` under a name is a
            `Sum`, and an object with `merge()` is `Merged`, under the name of its place, which may be empty.

    Raises:
        InvalidStep: Two metrics have the same name.

    Example:
        >>> flat({"loss": 0.5, "top": {"1": 0.25}})
        ({'loss': 0.5, 'top/1': 0.25}, {})
        >>> flat((0.5, {"accuracy": 0.25}))[0], flat((0.5, 0.25))[0], flat((0.5, (0.25, 0.75)))[0]
        ({'loss': 0.5, 'accuracy': 0.25}, {'loss': 0.5, 'aux': 0.25}, {'loss': 0.5, 'aux/0': 0.25, 'aux/1': 0.75})
        >>> flat({"loss": 0.5, "note": "low"})
        ({'loss': 0.5}, {'note': "is 'low', which is text; give a number for it"})
        >>> flat({"loss": (3.0, 4)}, over_batches=True)[0]
        {'loss': Sum(total=3.0, weight=4)}
    """
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}

    def take(named: Iterator[tuple[str, Any]], prefix: str | None = None) -> None:
        for name, value in named:
            name = name or ("" if isinstance(value, Merged) else ALONE)
            if name in found and prefix is not None:
                name = f"{prefix}/{name}".removesuffix("/")
            if name in found or name in left_out:
                raise InvalidStep(f"two metrics are called {name!r}. Give one of them another name")
            value = _array(value)
            reason = _reason(value)
            if reason is None:
                found[name] = value
            else:
                left_out[name] = reason

    if _is_sequence(metrics) and metrics:
        take(_named("", metrics[0], over_batches))
        rest = metrics[1:]
        for number, part in enumerate(rest):
            name = _AUX if len(rest) == 1 else f"{_AUX}/{number}"
            take(_named("" if _parts(part) and not _is_sequence(part) else name, part, over_batches), name)
    elif metrics is not None:
        take(_named("", metrics, over_batches))
    for accumulator in accumulated or ():
        value = _computed(accumulator.value)
        take(_named("" if _parts(value) else accumulator.name, value), accumulator.name)
    return found, left_out


def warn_left_out(who: str, name: str, left_out: Mapping[str, str]) -> None:
    """Warns of returned values that are no metrics, with the reasons."""
    if left_out:
        reasons = "; ".join(f"{metric!r} {reason}" for metric, reason in left_out.items())
        _logger.warning("%s: %s: some metrics are no numbers, and are left out: %s.", who, name, reasons)


class _Unread(str):
    """The reason why the value of a metric could not be computed."""


def _named(name: str, value: Any, over_batches: bool = False, is_part: bool = False) -> Iterator[tuple[str, Any]]:
    if over_batches and merges(value):
        yield name, Merged(value)
        return
    if over_batches and is_part and _is_sum(value):
        yield name, Sum(*map(_array, value))
        return
    if is_computed(value):
        computed = _computed(value)
        if isinstance(computed, _Unread):
            parts = {key: part for key, part in (_parts(value) or {}).items() if is_computed(part) and key[:1] != "_"}
            value = parts or computed
        else:
            value = computed
    parts = _parts(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts.items():
        yield from _named(f"{name}/{key}" if name else str(key), part, over_batches, not _is_sequence(value))


def _computed(value: Any) -> Any:
    try:
        return value.compute()
    except jax.errors.JAXTypeError:
        return _Unread(
            f"is a {type(value).__name__} whose compute() reads values, but the step is compiled, and has values only "
            f"when it runs; give a metric that jax.numpy can compute: a mean, a sum"
        )


def _is_sequence(value: Any) -> bool:
    return type(value) in (tuple, list)


def _parts(value: Any) -> Mapping[Any, Any] | None:
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
    """Returns whether a value is a pair of numbers, or of arrays of which the second may be a number for all."""
    if type(value) is not tuple or len(value) != 2 or any(_reason(_array(part)) for part in value):
        return False
    return np.shape(value[1]) in ((), np.shape(value[0]))


def _array(value: Any) -> Any:
    if not isinstance(value, jax.Array) and hasattr(type(value), "__jax_array__"):
        return value.__jax_array__()  # An NNX variable, such as the learning rate of an optimizer.
    return value


def _reason(value: Any) -> str | None:
    """Returns the reason why a value is no metric, and the remedy; `None` if it is one."""
    if isinstance(value, Sum | Merged):
        return None
    if isinstance(value, _Unread):
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
