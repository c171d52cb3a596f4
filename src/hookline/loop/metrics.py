"""What a step says of itself, as numbers and arrays by name."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.loop.accumulators import Accumulator, is_computed
from hookline.loop.kinds import Unfit

_logger = logging.getLogger(__name__)

ALONE = "loss"
"""What the one number is called that a step returned without a name, and the first of several."""
_AUX = "aux"


def flat(metrics: Any, accumulated: list[Accumulator] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns metrics by name, and the reasons why others are left out; the name of a nested one has slashes.

    Args:
        metrics: A dict, named tuple or dataclass, nested as you like, of numbers, arrays and objects with `compute()`.
            A tuple, `(loss, aux)`, as `jax.value_and_grad(has_aux=True)` gives it: `aux` is a dict, whose names stand
            for themselves, or something without names. Or one number, which is called `loss`.
        accumulated: What accumulates in the state; it is computed.

    Raises:
        Unfit: Two of one name.

    Example:
        >>> flat({"loss": 0.5, "top": {"1": 0.25}})
        ({'loss': 0.5, 'top/1': 0.25}, {})
        >>> flat((0.5, {"accuracy": 0.25}))[0], flat((0.5, 0.25))[0], flat((0.5, (0.25, 0.75)))[0]
        ({'loss': 0.5, 'accuracy': 0.25}, {'loss': 0.5, 'aux': 0.25}, {'loss': 0.5, 'aux/0': 0.25, 'aux/1': 0.75})
        >>> flat({"loss": 0.5, "note": "low"})
        ({'loss': 0.5}, {'note': "is 'low', which is text; give a number for it"})
    """
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}

    def take(named: Iterator[tuple[str, Any]], prefix: str | None = None) -> None:
        for name, value in named:
            name = name or ALONE
            if name in found and prefix is not None:
                name = f"{prefix}/{name}"
            if name in found or name in left_out:
                raise Unfit(f"two metrics are called {name!r}. Give one of them another name")
            value = _array(value)
            reason = _reason(value)
            if reason is None:
                found[name] = value
            else:
                left_out[name] = reason

    if _is_sequence(metrics) and metrics:
        take(_named("", metrics[0]))
        rest = metrics[1:]
        for number, part in enumerate(rest):
            name = _AUX if len(rest) == 1 else f"{_AUX}/{number}"
            take(_named("" if _parts(part) and not _is_sequence(part) else name, part), name)
    elif metrics is not None:
        take(_named("", metrics))
    for accumulator in accumulated or ():
        value = _computed(accumulator.value)
        take(_named("" if _parts(value) else accumulator.name, value), accumulator.name)
    return found, left_out


def say_left_out(who: str, name: str, left_out: Mapping[str, str]) -> None:
    """Warns of metrics of a function that are left out, with the reasons."""
    if left_out:
        reasons = "; ".join(f"{metric!r} {reason}" for metric, reason in left_out.items())
        _logger.warning("%s: %s: among the metrics there are no numbers, which are left out: %s.", who, name, reasons)


class _Unread(str):
    """Why the value of a metric could not be computed."""


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
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
        yield from _named(f"{name}/{key}" if name else str(key), part)


def _computed(value: Any) -> Any:
    try:
        return value.compute()
    except jax.errors.JAXTypeError:
        return _Unread(
            f"is a {type(value).__name__} whose compute() reads values, but the step is compiled, and they are there "
            f"only when it runs; give what can be computed with jax.numpy: a mean, a sum"
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


def _array(value: Any) -> Any:
    if not isinstance(value, jax.Array) and hasattr(type(value), "__jax_array__"):
        return value.__jax_array__()  # of a variable of NNX, such as the rate of an optimizer
    return value


def _reason(value: Any) -> str | None:
    """Returns why something is no metric, and what to do; `None` if it is one."""
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
