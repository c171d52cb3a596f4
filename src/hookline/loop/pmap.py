"""Recognises `jax.pmap` in a step: the function it makes, its axis, and the leading axis of its arrays."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax

from hookline import jax_internals

# JAX's NameError has no other mark.
_UNBOUND = re.compile(r"unbound axis name: (\w+)")
_AXIS = "batch"  # As in most published steps, if the error does not tell.


def refuse_pmap(who: str, name: str, function: Any) -> None:
    """Raises `TypeError` for a function that `jax.pmap` has made, with what to write instead."""
    if jax_internals.is_pmapped(function):
        raise TypeError(f"{who}: {name} is made by jax.pmap, but {_instead(_AXIS)}")


def refusal_of_axis(who: str, name: str, error: Exception) -> TypeError | None:
    """Returns what to raise for JAX's error about an axis that only `jax.pmap` would give; None for other errors."""
    found = _UNBOUND.search(str(error)) if isinstance(error, NameError) else None
    if found is None:
        return None
    return TypeError(f"{who}: {name} uses the axis {found[1]!r} of a jax.pmap, but {_instead(found[1])}")


def note_of(function: Any, *values: Any) -> str | None:
    """Returns a note for an error of a step that `jax.pmap` may explain; None if nothing points to it.

    Args:
        function: The step.
        *values: The specs of the state and of a batch.
    """
    count = jax.local_device_count()
    shapes = [[leaf.shape for leaf in jax.tree.leaves(value)] for value in values]
    if all(shapes) and all(shape[:1] == (count,) for some in shapes for shape in some):
        what = f"all arrays of the state and the batch have a leading axis of {count}, the number of devices, as for"
        return f"hookline: {what} jax.pmap. If so: {_instead(_AXIS)}"
    names = [name for name, value in _used(function).items() if jax_internals.is_pmapped(value)]
    return f"hookline: the step uses {names[0]}, which is made by jax.pmap, but {_instead(_AXIS)}" if names else None


def _used(function: Any) -> dict[str, Any]:
    """Returns the global and outer variables that a function uses."""
    try:
        found = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def _instead(axis: str) -> str:
    return (
        f"a step is one program over all devices. Give it without jax.pmap, a state that is not replicated, and "
        f"batches without a leading axis of devices: mesh = jax.make_mesh(({jax.device_count()},), ('data',), "
        f"axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., sharding=jax.NamedSharding(mesh, jax.P())), which also "
        f"splits the batches. And leave out jax.lax.pmean(..., {axis!r}): a mean in the step is over the whole batch."
    )
