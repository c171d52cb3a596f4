"""The mesh that the arrays of one computation lie on, and what to call it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"
"""The axis of a mesh over which batches are split where nothing else is said."""


def mesh_of(shardings: Iterable[Any], what: str = "The state") -> Mesh | None:
    """Returns the mesh that shardings are on; `None` where there is none.

    It may have one device: what is written for many is tried there. Two meshes of the same devices in one order, with
    automatic axes, are one to JAX: the first is returned.

    Args:
        shardings: Shardings; others than `NamedSharding`, and `None`, say nothing of a mesh.
        what: What lies there, for the message.

    Raises:
        ValueError: They are on two meshes that JAX does not compute with at once.
    """
    found: Mesh | None = None
    for sharding in shardings:
        mesh = getattr(sharding, "mesh", None)
        if not isinstance(mesh, Mesh):
            continue
        if found is None:
            found = mesh
        elif clash(found, mesh):
            raise ValueError(
                f"{what} lies on two meshes, {shown(found)} and {shown(mesh)}, and JAX computes on one at a time. Put "
                f"all of it on one."
            )
    return found


def clash(one: Mesh, other: Mesh) -> bool:
    """Whether JAX refuses to compute with arrays on both at once."""
    if one == other:
        return False
    return AxisType.Explicit in (*one.axis_types, *other.axis_types) or list(one.devices.flat) != list(
        other.devices.flat
    )


def over_data(mesh: Mesh | None) -> NamedSharding | None:
    """Returns the sharding of batches over the axis `data` of a mesh; `None` where there is no such axis."""
    if mesh is None or DATA_AXIS not in mesh.axis_names:
        return None
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def on_mesh(who: str, name: str, shardings: Any, mesh: Mesh | None) -> Any:
    """Returns a tree of shardings with a `NamedSharding` on the mesh for each `PartitionSpec` in it.

    Args:
        who: Who was given it, for messages.
        name: What the argument is called, for messages.
        shardings: The tree.
        mesh: The mesh of the state.

    Raises:
        ValueError: There is no mesh, or it has no axis of such a name.
    """

    def placed(sharding: Any) -> Any:
        if not isinstance(sharding, PartitionSpec):
            return sharding
        if mesh is None:
            raise ValueError(
                f"{who} requires a state on a mesh where {name} is a PartitionSpec, {sharding}, and this state is on "
                f"none. Put the state on a mesh, or give jax.NamedSharding(mesh, {sharding})."
            )
        try:
            return NamedSharding(mesh, sharding)
        except ValueError as error:
            raise ValueError(
                f"{who}: the {name} {sharding} does not fit the mesh of the state, {shown(mesh)}: {error}"
            ) from None

    return jax.tree.map(placed, shardings)


def shown(mesh: Mesh) -> str:
    """Returns a mesh in words: "(data=2, model=2) on cpu:0 to cpu:3"."""
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    kinds = "explicit axes, " if AxisType.Explicit in mesh.axis_types else ""
    names = [str(device) for device in mesh.devices.flat]
    return f"({kinds}{axes}) on {' to '.join((names[0], names[-1])) if len(names) > 2 else ', '.join(names)}"
