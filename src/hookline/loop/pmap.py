"""Recognises what `jax.pmap` leaves in a step: the function it makes, its axis, and the leading axis of arrays."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax

# JAX's NameError has no other mark.
_UNBOUND = re.compile(r"unbound axis name: (\w+)")
_MODULE = "jax._src.pmap"

_MESH = (
    "`mesh = jax.make_mesh((jax.device_count(),), ('data',), axis_types=(jax.sharding.AxisType.Auto,))` and "
    "`Loop(..., sharding=jax.NamedSharding(mesh, jax.P()))`"
)


def refuse_pmap(who: str, name: str, function: Any) -> None:
    """Raises `TypeError` for a function that `jax.pmap` has made, with what to write instead."""
    if _is_pmapped(function):
        raise TypeError(f"{who}: {name} is made by jax.pmap, and {_instead('batch')}")


def refusal_of_axis(who: str, name: str, error: Exception) -> TypeError | None:
    """Returns the error to raise in place of JAX's for a mean over an axis of `jax.pmap`; None for another error."""
    found = _UNBOUND.search(str(error)) if isinstance(error, NameError) else None
    if found is None:
        return None
    axis = found[1]
    return TypeError(f"{who}: {name} uses the axis {axis!r}, which only jax.pmap would give it, and {_instead(axis)}")


def note_of(function: Any, *values: Any) -> str | None:
    """Returns a note for an error of a step that `jax.pmap` may explain; None if nothing shows it.

    Args:
        function: The step.
        *values: The specs of the state and of a batch.
    """
    count = jax.local_device_count()
    shapes = [[leaf.shape for leaf in jax.tree.leaves(value)] for value in values]
    if all(shapes) and all(shape[:1] == (count,) for some in shapes for shape in some):
        what = f"each array of the state and the batch has a leading axis of {count}, the number of devices. If it is"
    elif names := [name for name, value in _used(function).items() if _is_pmapped(value)]:
        what = f"the step uses {names[0]}, whose arrays have a leading axis of devices. If it is"
    else:
        return None
    return f"hookline: {what} of jax.pmap: {_instead('batch')}"


def _is_pmapped(function: Any) -> bool:
    function = getattr(function, "func", function)  # of functools.partial
    return getattr(getattr(function, "lower", None), "__module__", None) == _MODULE


def _used(function: Any) -> dict[str, Any]:
    """Returns the global and outer variables that a function uses."""
    try:
        found = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def _instead(axis: str) -> str:
    return (
        f"a step is one program over all devices here. Leave out jax.pmap, with flax.jax_utils.replicate and the "
        f"leading axis of batches: {_MESH} split each batch over the devices. Leave out jax.lax.pmean(..., {axis!r}): "
        f"a mean in the step is over the whole batch already."
    )
