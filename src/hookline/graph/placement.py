"""Where arrays live: on which mesh a graph is at home, and which layouts a function fixes for what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph import spec as specs

# What puts an array somewhere by the will of whoever wrote it.
_PLACES = ("sharding_constraint", "reshard", "mesh_cast")


def mesh_of(shardings: Iterable[Any]) -> jax.sharding.Mesh | None:
    """Returns the mesh that some shardings have; None where none has one of several devices.

    Raises:
        ValueError: There are two; it names both.
    """
    found: jax.sharding.Mesh | None = None
    for sharding in shardings:
        mesh = getattr(sharding, "mesh", None)
        if mesh is None or mesh.size < 2:
            continue
        if found is not None and mesh != found:
            raise ValueError(f"one array lies on {shown(found)}, and another one on {shown(mesh)}")
        found = mesh
    return found


def home_of(shardings: Iterable[Any]) -> jax.sharding.Sharding | None:
    """Returns where goes what has no place of its own beside arrays with these: whole, to all of their devices.

    None where they say nothing, or JAX would put it there anyway.

    Raises:
        ValueError: As of `mesh_of`.
    """
    given = [sharding for sharding in shardings if sharding is not None]
    mesh = mesh_of(given)
    if mesh is not None:
        return jax.NamedSharding(mesh, jax.P())
    devices = {frozenset(sharding.device_set) for sharding in given}
    if len(devices) == 1 and len(only := next(iter(devices))) == 1:
        return jax.sharding.SingleDeviceSharding(next(iter(only)))
    return None


def inside(home: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a block in which the mesh of a home is the one of JAX's context, as after `jax.set_mesh`."""
    mesh = getattr(home, "mesh", None)
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def has_explicit_axes(place: Any) -> bool:
    """Whether it is a sharding on a mesh with axes that are parts of JAX's types."""
    mesh = getattr(place, "mesh", None)
    return mesh is not None and jax.sharding.AxisType.Explicit in mesh.axis_types


def current() -> jax.sharding.Sharding | None:
    """Returns the home that the context of this thread means: whole on the mesh of `jax.set_mesh`, if it is in one."""
    mesh = _here()
    return None if mesh is None or mesh.size < 2 else jax.NamedSharding(mesh, jax.P())


def _here() -> jax.sharding.Mesh | None:
    """Returns the mesh of the context; None also inside of a trace, which knows no devices."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    return None if mesh.empty else mesh


def shown(mesh: jax.sharding.Mesh) -> str:
    """Returns a mesh in words: "the mesh (data: 2, model: 2) of cpu:0 to cpu:3"."""
    axes = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
    first, *_, last = [str(device) for device in mesh.devices.flat] * 2
    return f"the mesh ({axes}) of {first} to {last}"


def is_at(array: Any, place: jax.sharding.Sharding) -> bool:
    """Whether an array lies at a place, and JAX would not move it."""
    return (
        isinstance(array, jax.Array)
        and getattr(array, "committed", False)
        and array.sharding.is_equivalent_to(place, array.ndim)
    )


def put(array: Any, place: jax.sharding.Sharding | None) -> Any:
    """Returns an array, or a number, as an array that lies at a place; the same one, if it does."""
    if place is None or is_at(array, place):
        return array
    return jax.device_put(array if hasattr(array, "dtype") else jnp.asarray(array), place)


def put_all(tree: Any, place: jax.sharding.Sharding | None) -> Any:
    """Does so with all arrays of a tree that lie nowhere in particular; what somebody has put somewhere stays."""
    if place is None:
        return tree
    free = lambda leaf: isinstance(leaf, jax.Array) and not leaf.committed  # noqa: E731
    return jax.tree.map(lambda leaf: jax.device_put(leaf, place) if free(leaf) else leaf, tree)


def fixed(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the shardings that a function itself fixes for what it returns, leaf by leaf; None where it does not.

    It does with `jax.jit(..., out_shardings=)`, `jax.shard_map(..., out_specs=)`, `jax.device_put`,
    `jax.lax.with_sharding_constraint` and `jax.sharding.reshard`. What XLA would choose, or explicit axes infer, is not
    meant; nor is a constraint that does not divide the array, for XLA lets that go. Nothing is computed.
    """
    return _fixed(jax.make_jaxpr(function)(*arguments).jaxpr)


def _fixed(jaxpr: Any) -> list[Any]:
    makers = {id(out): (equation, place) for equation in jaxpr.eqns for place, out in enumerate(equation.outvars)}
    found: list[Any] = []
    inner: dict[int, list[Any]] = {}
    for out in jaxpr.outvars:
        equation, place = makers.get(id(out), (None, 0))
        sharding = None
        if equation is not None and equation.primitive.name in _PLACES:
            sharding = equation.params.get("sharding", equation.params.get("dst_sharding"))
        elif equation is not None and equation.primitive.name == "device_put":
            sharding = equation.params["devices"][place]
        elif equation is not None and equation.primitive.name == "shard_map":
            mesh = equation.params["mesh"]
            # With axes that XLA is left to, a spec does not say all.
            if equation.params.get("newly_manual_axes") == frozenset(mesh.axis_names):
                sharding = jax.NamedSharding(mesh, equation.params["out_specs"][place])
        elif equation is not None and "out_shardings" in equation.params:
            sharding = equation.params["out_shardings"][place]
            if not isinstance(sharding, jax.sharding.Sharding):
                if id(equation) not in inner:
                    inner[id(equation)] = _fixed(equation.params["jaxpr"].jaxpr)
                sharding = inner[id(equation)][place]
        if isinstance(sharding, jax.Device):
            sharding = jax.sharding.SingleDeviceSharding(sharding)
        found.append(_concrete(sharding, out.aval.shape))
    return found


def _concrete(sharding: Any, shape: Any) -> Any:
    """Returns a sharding on devices; None for one on an abstract mesh other than that of the context.

    None also for one that cannot be that of an array of this shape, since it does not divide it.
    """
    if not isinstance(sharding, jax.sharding.Sharding):
        return None
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return None
    if isinstance(sharding, jax.NamedSharding) and isinstance(sharding.mesh, jax.sharding.AbstractMesh):
        here = _here()
        return None if here is None or here.abstract_mesh != sharding.mesh else jax.NamedSharding(here, sharding.spec)
    return sharding


def of_spec(spec: Any) -> list[Any]:
    """Returns the shardings that a spec knows, leaf by leaf: those of explicit axes."""
    return [] if spec is specs.UNKNOWN else [_concrete(leaf.sharding, leaf.shape) for leaf in jax.tree.leaves(spec)]


def with_places(spec: Any, places: Sequence[Any]) -> Any:
    """Returns a spec that knows of the places that have explicit axes, as the types of JAX do."""
    if spec is specs.UNKNOWN or not places:
        return spec

    def leaf(array: Any, place: Any) -> Any:
        if not has_explicit_axes(place):
            return array
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)

    leaves, structure = jax.tree.flatten(spec)
    return structure.unflatten(map(leaf, leaves, places))
