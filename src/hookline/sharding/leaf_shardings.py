"""The leaves of a state, and checks of their shardings: each mistake gets a clear message before JAX sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from hookline import arguments
from hookline.paths import flatten_with_paths
from hookline.signals import interrupts

_NUMBERS = (bool, int, float, complex)


class Leaf(NamedTuple):
    """A leaf of a state.

    Attributes:
        path: Its path, without the Flax object around it.
        shape: Its shape; None if it is not an array.
        box: The Flax object around it that may have metadata, or None.
    """

    path: str
    shape: tuple[int, ...] | None
    box: Any

    @property
    def size(self) -> int:
        """The number of elements; 1 if it is not an array."""
        return math.prod(self.shape or ())

    def __str__(self) -> str:
        """Names it in a message."""
        return repr(self.path) if self.path else "the state"


def leaves_of(state: Any) -> list[Leaf]:
    """Returns the leaves of a state, concrete or abstract, in the order of `jax.tree.leaves`."""
    found = []
    for path, node in flatten_with_paths(state, is_leaf=is_box)[0]:
        if is_box(node):
            inside = jax.tree.leaves(node)
            paths = [path] if len(inside) == 1 else [f"{path}/{end}" for end, _ in flatten_with_paths(node)[0]]
            found += [Leaf(end, _shape_of(leaf), node) for end, leaf in zip(paths, inside, strict=True)]
        else:
            found.append(Leaf(path, _shape_of(node), None))
    return found


def is_box(value: Any) -> bool:
    """Returns whether it is an object of Flax that adds metadata to an array. Flax need not be installed."""
    return any(
        kind.__module__.startswith("flax.") and kind.__name__ in ("Partitioned", "Variable")
        for kind in type(value).__mro__
    )


def format_names(names: Sequence[Any]) -> str:
    """Lists a few names in a message."""
    few, more = ", ".join(map(str, names[:3])), len(names) - 3
    return f"{few} and {more} more" if more > 0 else few


def _shape_of(leaf: Any) -> tuple[int, ...] | None:
    if isinstance(leaf, _NUMBERS):
        return ()
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, tuple) else None


def resolve_shardings(who: str, state: Any, shardings: Any) -> list[jax.sharding.Sharding | None]:
    """Returns the sharding of each leaf of a state, in the order of its leaves; None for leaves without one.

    Args:
        who: The class or function that got the shardings, for messages.
        state: A state, of values or abstract.
        shardings: A sharding or a device for all of it; a tree of them and of None, where one may apply to a whole
            subtree; or a rule that makes such a tree from the state.

    Raises:
        TypeError: The shardings contain an object of another type.
        ValueError: The tree differs in structure from the state, a sharding does not fit its array, or two have
            different devices.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> state = {"n": jax.ShapeDtypeStruct((), "int32"), "w": jax.ShapeDtypeStruct((8,), "float32")}
        >>> found = resolve_shardings("Loop", state, {"n": None, "w": jax.NamedSharding(mesh, jax.P("data"))})
        >>> [place and place.spec for place in found]
        [None, P('data',)]
        >>> resolve_shardings("Loop", state, jax.NamedSharding(mesh, jax.P("data")))
        Traceback (most recent call last):
        ...
        ValueError: Loop: the spec P('data',) of 'n' has 1 entry, but the array has 0 dimensions. Leave the rest out...
    """
    found = broadcast_shardings(who, state, shardings)
    _check_devices(who, leaves_of(state), found)
    return found


def broadcast_shardings(who: str, state: Any, shardings: Any) -> list[jax.sharding.Sharding | None]:
    """Does the same as `resolve_shardings`, but meshes may lack devices, or have different ones."""
    if isinstance(shardings, jax.sharding.Mesh):  # A mesh is callable, too.
        raise TypeError(
            f"{who} requires shardings, got a mesh. For a copy on each device write jax.NamedSharding(mesh, jax.P())."
        )
    if not isinstance(state, list) and _is_list_of_devices(shardings):
        raise TypeError(
            f"{who} requires shardings, got a list of devices. For a copy on each device write mesh = "
            f"jax.make_mesh(({len(shardings)},), ('data',), axis_types=(jax.sharding.AxisType.Auto,)) and "
            "jax.NamedSharding(mesh, jax.P())."
        )
    # A module with a sharding in place of each array is callable, too.
    is_rule = callable(shardings) and jax.tree_util.treedef_is_leaf(jax.tree.structure(shardings))
    given = interrupts.call_user_function(shardings, state) if is_rule else shardings
    found: list[Any] = []

    def spread_below(sharding: Any, below: Any) -> None:
        found.extend([sharding] * len(jax.tree.leaves(below)))

    try:
        jax.tree.map(spread_below, given, state, is_leaf=_is_none)
    except (ValueError, TypeError) as exc:
        raise ValueError(f"{who}: {_describe_difference(state, given)}") from exc
    return [_to_sharding(who, leaf, sharding) for leaf, sharding in zip(leaves_of(state), found, strict=True)]


def _is_list_of_devices(shardings: Any) -> bool:
    return isinstance(shardings, list) and bool(shardings) and all(isinstance(one, jax.Device) for one in shardings)


def make_named_sharding(who: str, leaf: Leaf, mesh: Any, spec: jax.P, remedy: str = "") -> jax.NamedSharding:
    """Returns the sharding of an array on a mesh, given by a spec.

    Args:
        who: The rule.
        leaf: The array.
        mesh: The mesh.
        spec: The spec.
        remedy: Advice for an axis that the mesh lacks.

    Raises:
        ValueError: The spec does not fit the array.
    """
    _check_fit(who, leaf, mesh, spec, remedy)
    return jax.NamedSharding(mesh, spec)


def check_mesh(who: str, mesh: Any) -> None:
    """Raises a TypeError if `mesh` is not a mesh."""
    arguments.check_has(who, "mesh", mesh, "a mesh", "axis_names")


def check_axes(who: str, subject: str, mesh: Any, spec: jax.P, remedy: str = "") -> None:
    """Raises a ValueError if a spec names an axis that the mesh lacks, or an axis twice."""
    named = [axis for entry in spec for axis in _axis_names(entry)]
    for axis in named:
        if axis is jax.P.UNCONSTRAINED:
            raise ValueError(f"{who}: {subject} leaves a dimension open. Write None in place of UNCONSTRAINED.")
        if axis not in mesh.axis_names:
            raise ValueError(
                f"{who}: {subject} names the axis {axis!r}, but the mesh has "
                f"{' and '.join(map(repr, mesh.axis_names))}. {remedy or 'Name an axis of the mesh.'}"
            )
        if named.count(axis) > 1:
            raise ValueError(f"{who}: {subject} names the axis {axis!r} twice. An axis splits one dimension.")


def num_shards(mesh: Any, entry: Any) -> int:
    """Returns the number of parts into which an entry of a spec splits a dimension."""
    return math.prod(mesh.shape[axis] for axis in _axis_names(entry))


def unflatten_shardings(who: str, state: Any, found: dict[int, jax.NamedSharding], default: Any = None) -> Any:
    """Returns a state with shardings in place of leaves.

    Args:
        who: The rule.
        state: The state.
        found: The shardings from the rule, by the index of the leaf.
        default: The shardings of the other leaves, as `resolve_shardings` takes them; a rule gets None for the leaves
            in `found`.
    """
    values, structure = jax.tree.flatten(state)
    resolved: list[Any] = [found.get(index) for index in range(len(values))]
    if default is not None:
        left = [index for index in range(len(values)) if index not in found]
        rest = jax.tree.unflatten(structure, [None if i in found else value for i, value in enumerate(values)])
        for index, sharding in zip(left, broadcast_shardings(who, rest, default), strict=True):
            resolved[index] = sharding
    return jax.tree.unflatten(structure, resolved)


def _axis_names(entry: Any) -> tuple[Any, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _to_sharding(who: str, leaf: Leaf, given: Any) -> jax.sharding.Sharding | None:
    if isinstance(given, jax.P):
        raise TypeError(
            f"{who} requires a sharding for {leaf}, got the spec {given}. Write jax.NamedSharding(mesh, jax.{given})."
        )
    if not isinstance(given, jax.sharding.Sharding | jax.Device | None):
        raise TypeError(f"{who} requires a sharding, a device or None for {leaf}, got {given!r}.")
    if given is None or leaf.shape is None:
        return None
    if isinstance(given, jax.Device):
        return jax.sharding.SingleDeviceSharding(given)
    if isinstance(given, jax.NamedSharding):
        _check_fit(who, leaf, given.mesh, given.spec)
        return given
    try:
        given.shard_shape(leaf.shape)
    except ValueError as exc:
        raise ValueError(f"{who}: {leaf}, of shape {leaf.shape}, cannot have the sharding {given}: {exc}") from exc
    return given


def _check_fit(who: str, leaf: Leaf, mesh: Any, spec: jax.P, remedy: str = "") -> None:
    check_axes(who, f"the spec {spec} of {leaf}", mesh, spec, remedy)
    shape = leaf.shape or ()
    if len(spec) > len(shape):
        entries, dimensions = (
            _format_count(len(spec), "entry", "entries"),
            _format_count(len(shape), "dimension", "dimensions"),
        )
        raise ValueError(
            f"{who}: the spec {spec} of {leaf} has {entries}, but the array has {dimensions}. Leave the rest out; "
            f"jax.P() fits any array."
        )
    for dimension, (entry, length) in enumerate(zip(spec, shape, strict=False)):
        if length % (count := num_shards(mesh, entry)):
            raise ValueError(
                f"{who}: the spec {spec} of {leaf} splits dimension {dimension} of {shape} over {entry!r} into {count} "
                f"parts, but {length} is no multiple of {count}. Change that size, or write None for this dimension."
            )


def _check_devices(who: str, leaves: list[Leaf], shardings: list[jax.sharding.Sharding | None]) -> None:
    seen: list[tuple[Leaf, list[Any]]] = []
    for leaf, sharding in zip(leaves, shardings, strict=True):
        if sharding is not None:
            if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
                raise ValueError(
                    f"{who}: {leaf} has an abstract mesh. Give a mesh that has devices, jax.make_mesh(...)."
                )
            seen.append((leaf, _devices_of(sharding)))
            (first, devices), (last, others) = seen[0], seen[-1]
            if devices != others:
                raise ValueError(
                    f"{who}: {first} is on {_format_devices(devices)}, and {last} on {_format_devices(others)}. Give "
                    f"both a sharding over the same mesh; jax.P() puts a copy on each of its devices."
                )


def _devices_of(sharding: jax.sharding.Sharding) -> list[Any]:
    # JAX compiles for devices in an order: the same devices in another order do not match.
    if isinstance(sharding, jax.NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh):
        return list(sharding.mesh.devices.flat)
    return sorted(sharding.device_set, key=lambda device: device.id)


def _format_devices(devices: list[Any]) -> str:
    return f"{_format_count(len(devices), 'device', 'devices')} ({format_names(devices)})"


def _format_count(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _describe_difference(state: Any, given: Any) -> str:
    """Describes how a tree of shardings differs in structure from its state."""
    ends = [path for path, _ in flatten_with_paths(state)[0]]
    known = [path for path, _ in flatten_with_paths(state, is_leaf=_is_none)[0]]
    given_paths = [path for path, _ in flatten_with_paths(given, is_leaf=_is_none)[0]]
    if strange := [path for path in given_paths if not any(_is_path_prefix(path, end) for end in known)]:
        return f"the shardings have {format_names([*map(repr, strange)])}, which the state does not have."
    if unsaid := [end for end in ends if not any(_is_path_prefix(path, end) for path in given_paths)]:
        return f"the shardings lack {format_names([*map(repr, unsaid)])}. Write None for an array without a sharding."
    return "the shardings are in other containers than the state. Make them from the state, with jax.tree.map."


def _is_path_prefix(path: str, end: str) -> bool:
    return not path or f"{end}/".startswith(f"{path}/")


def _is_none(value: Any) -> bool:
    return value is None
