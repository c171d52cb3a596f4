"""What a step says of itself, as numbers by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.loop.forms import Unfit, is_computed

ALONE = "loss"
"""What the one number is called that a step returned without a name."""


def flat(metrics: Any) -> dict[str, Any]:
    """Returns metrics as scalars by name; the name of a nested one has slashes.

    Args:
        metrics: A dict, named tuple or dataclass, nested as you like, of numbers and of objects with `compute()`; or
            one number, which is called `loss`.

    Raises:
        Unfit: Something that is no number, or not one; two of one name.

    Example:
        >>> flat({"loss": 0.5, "top": {"1": 0.25}})
        {'loss': 0.5, 'top/1': 0.25}
        >>> flat({"loss": "low"})
        Traceback (most recent call last):
        ...
        hookline.loop.forms.Unfit: a metric is one number, but 'loss' is 'low'. Leave it out, ...
    """
    if metrics is None:
        return {}
    found: dict[str, Any] = {}
    for name, value in _named("", metrics):
        name = name or ALONE
        if name in found:
            raise Unfit(f"two metrics are called {name!r}. Give one of them another name")
        found[name] = _number(name, value)
    return found


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_computed(value):
        value = _computed(name or ALONE, value)
    parts = _parts(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts.items():
        yield from _named(f"{name}/{key}" if name else str(key), part)


def _computed(name: str, value: Any) -> Any:
    try:
        return value.compute()
    except jax.errors.JAXTypeError as error:
        raise Unfit(
            f"compute() of {type(value).__name__}, the metric {name!r}, reads values, but the step is compiled, and "
            f"they are there only when it runs. Give what can be computed of one batch with jax.numpy: a mean, a sum"
        ) from error


def _parts(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._asdict()  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, jax.Array) and hasattr(type(value), "__jax_array__"):
        value = value.__jax_array__()  # of a variable of NNX, such as the rate of an optimizer
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
    if not is_array and not isinstance(value, bool | int | float):
        raise Unfit(
            f"a metric is one number, but {name!r} is {value!r}. Leave it out, or make a summary of your own of it"
        )
    shape = np.shape(value)
    if shape:
        raise Unfit(
            f"a metric is one number, but {name!r} has the shape {shape}. Reduce it: a mean, a norm, the last one"
        )
    if is_array and not (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool):
        raise Unfit(f"a metric is one number, but {name!r} is of dtype {value.dtype}")
    if jnp.issubdtype(jnp.result_type(value), jnp.complexfloating):
        raise Unfit(f"a metric is one real number, but {name!r} is complex. Take its absolute value")
    return value
