"""The placement of arrays: the mesh of a graph, and the shardings that a function fixes for its results."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.jaxpr_dependencies import called_jaxpr

DATA_AXIS = "data"
"""The mesh axis over which batches are split by default."""

# The primitives with which a user gives an array a sharding.
_SHARDING_PRIMITIVES = ("sharding_constraint", "reshard", "mesh_cast")
# The primitives that return one of their arguments.
_IDENTITY_PRIMITIVES = ("select_n", "copy", "copy_p", "optimization_barrier")


def common_mesh(shardings: Iterable[Any], subject: str = "The state") -> jax.sharding.Mesh | None:
    """Returns the common mesh of shardings; `None` if they have none.

    The mesh may have one device: programs for many are tried on one. Two meshes of the same devices in the same order,
    with automatic axes, are compatible: the first is returned.

    Args:
        shardings: Shardings; only a `NamedSharding` has a mesh.
        subject: The arrays with these shardings, for the message.

    Raises:
        ValueError: They are on two meshes that JAX does not compute with together.
    """
    found: jax.sharding.Mesh | None = None
    for sharding in shardings:
        mesh = getattr(sharding, "mesh", None)
        if not isinstance(mesh, jax.sharding.Mesh):
            continue
        if found is None:
            found = mesh
        elif are_incompatible(found, mesh):
            raise ValueError(
                f"{subject} is on two meshes, {describe_mesh(found)} and {describe_mesh(mesh)}, and JAX computes on "
                f"one at a time. Put all of it on one."
            )
    return found


def are_incompatible(one: jax.sharding.Mesh, other: jax.sharding.Mesh) -> bool:
    """Returns whether JAX refuses to compute with arrays on both together."""
    if one == other:
        return False
    return jax.sharding.AxisType.Explicit in (*one.axis_types, *other.axis_types) or list(one.devices.flat) != list(
        other.devices.flat
    )


def as_sharding(sharding: Any) -> Any:
    """Converts a device to a sharding; returns other values as they are."""
    return jax.sharding.SingleDeviceSharding(sharding) if isinstance(sharding, jax.Device) else sharding


def default_sharding_for(shardings: Iterable[Any], what: str) -> jax.sharding.Sharding | None:
    """Returns the default sharding of a graph whose arrays have these: replicated over their mesh, or their device.

    None if they have neither a mesh nor a common single device.

    Raises:
        ValueError: The error of `common_mesh`.
    """
    given = [sharding for sharding in shardings if sharding is not None]
    mesh = common_mesh(given, what)
    if mesh is not None:
        return jax.NamedSharding(mesh, jax.P())
    devices = {frozenset(sharding.device_set) for sharding in given}
    if len(devices) == 1 and len(only := next(iter(devices))) == 1:
        return jax.sharding.SingleDeviceSharding(next(iter(only)))
    return None


def enter_mesh(sharding: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager that sets a sharding's mesh, if it has one, as `jax.set_mesh` does."""
    mesh = getattr(sharding, "mesh", None)
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def has_explicit_axes(sharding: Any) -> bool:
    """Returns whether it is a sharding on a mesh with explicit axes."""
    mesh = getattr(sharding, "mesh", None)
    return mesh is not None and jax.sharding.AxisType.Explicit in mesh.axis_types


def current_mesh_context() -> jax.sharding.Sharding | None:
    """Returns the replicated sharding on the mesh of this thread's `jax.set_mesh`; `None` without one."""
    mesh = _current_mesh()
    return None if mesh is None else jax.NamedSharding(mesh, jax.P())


def _current_mesh() -> jax.sharding.Mesh | None:
    """Returns the mesh of the mesh context; `None` without one, and inside a trace, where it has no devices."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    return None if mesh.empty else mesh


def data_sharding(mesh: jax.sharding.Mesh | None) -> jax.NamedSharding | None:
    """Returns the sharding of batches over the axis `data` of a mesh; `None` if there is no such axis."""
    if mesh is None or DATA_AXIS not in mesh.axis_names:
        return None
    return jax.NamedSharding(mesh, jax.P(DATA_AXIS))


def to_named_shardings(who: str, name: str, shardings: Any, mesh: jax.sharding.Mesh | None) -> Any:
    """Converts each `PartitionSpec` in a tree of shardings to a `NamedSharding` on the mesh.

    Args:
        who: The receiver of the argument, for messages.
        name: The name of the argument, for messages.
        shardings: The tree.
        mesh: The mesh of the state.

    Raises:
        ValueError: There is no mesh, or it lacks an axis of that name.
    """

    def placed(sharding: Any) -> Any:
        if not isinstance(sharding, jax.P):
            return sharding
        if mesh is None:
            raise ValueError(
                f"{who} requires a state on a mesh where {name} is a PartitionSpec, {sharding}, and this state is on "
                f"none. Put the state on a mesh, or give jax.NamedSharding(mesh, {sharding})."
            )
        try:
            return jax.NamedSharding(mesh, sharding)
        except ValueError as error:
            raise ValueError(
                f"{who}: the {name} {sharding} does not fit the mesh of the state, {describe_mesh(mesh)}: {error}"
            ) from None

    return jax.tree.map(placed, shardings)


def describe_mesh(mesh: jax.sharding.Mesh) -> str:
    """Describes a mesh in words: "(data=2, model=2) on cpu:0 to cpu:3"."""
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    kinds = "explicit axes, " if jax.sharding.AxisType.Explicit in mesh.axis_types else ""
    names = [str(device) for device in mesh.devices.flat]
    return f"({kinds}{axes}) on {' to '.join((names[0], names[-1])) if len(names) > 2 else ', '.join(names)}"


def is_on(array: Any, sharding: jax.sharding.Sharding) -> bool:
    """Returns whether an array has a sharding, and is committed to it."""
    return (
        isinstance(array, jax.Array)
        and getattr(array, "committed", False)
        and array.sharding.is_equivalent_to(sharding, array.ndim)
    )


def device_put(array: Any, sharding: jax.sharding.Sharding | None) -> Any:
    """Puts an array or a number on the devices of a sharding; an array already there is returned as it is.

    With a sharding over several processes, each calls this with the same value, and fills its own devices:
    `jax.device_put` would compare the values first, which is a collective.
    """
    if sharding is None or is_on(array, sharding):
        return array
    array = array if hasattr(array, "dtype") else jnp.asarray(array)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.jit(_identity, out_shardings=sharding)(array)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            device_put(jax.random.key_data(array), sharding), impl=jax.random.key_impl(array)
        )
    held = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    _put_checksum.crc = crc32c(held, _put_checksum.crc)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


class _PutChecksum(threading.local):
    """The checksum of all arrays that this thread has put on several processes since the last `pop_checksum`."""

    crc = 0


_put_checksum = _PutChecksum()


def pop_checksum() -> int:
    """Returns this thread's checksum of the arrays put on several processes, and resets it; it is the same in all."""
    crc, _put_checksum.crc = _put_checksum.crc, 0
    return crc


def crc32c(array: np.ndarray, initial: int = 0) -> int:
    """Returns a checksum of an array, its dtype and shape, continued from an earlier checksum."""
    crc = google_crc32c.extend(initial, f"{array.dtype}{array.shape}".encode())
    return google_crc32c.extend(crc, array.tobytes())


def _identity(array: Any) -> Any:
    return array


def device_put_uncommitted(tree: Any, sharding: jax.sharding.Sharding | None) -> Any:
    """Puts the uncommitted arrays of a tree on the devices of a sharding; committed ones stay."""
    if sharding is None:
        return tree
    free = lambda leaf: isinstance(leaf, jax.Array) and not leaf.committed  # noqa: E731
    return jax.tree.map(lambda leaf: device_put(leaf, sharding) if free(leaf) else leaf, tree)


def addressable_data(array: jax.Array) -> jax.Array:
    """Returns an array as this process can read it: the whole, if all is here or replicated; else a single shard."""
    return array if array.is_fully_addressable else array.addressable_data(0)


def is_spmd() -> bool:
    """Returns whether this process is one of several in multi-process SPMD; in a single one, starts no backend."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def check_spmd(who: str, sharding: jax.sharding.Sharding) -> None:
    """Checks that a state is in all SPMD processes.

    Raises:
        ValueError: It is in some of them only, so each would train for itself. The error begins with `who`.
    """
    if not is_spmd():
        return
    found, count = sorted({device.process_index for device in sharding.device_set}), jax.process_count()
    if len(found) < count:
        raise ValueError(
            f"{who}: this is process {jax.process_index()} of {count} SPMD processes, and the state is in process "
            f"{', '.join(map(str, found))} alone. Leave out the device or the mesh, or put it on a mesh of all "
            "devices: jax.make_mesh((jax.device_count(),), ('data',), axis_types=(jax.sharding.AxisType.Auto,))."
        )


@functools.cache
def global_mesh() -> jax.sharding.Mesh:
    """Returns the mesh of all devices of all processes, over which batches are split by default."""
    return jax.sharding.Mesh(np.array(jax.devices()), (DATA_AXIS,))


def apply_replicated(function: Callable[[Any], Any], array: Any) -> Any:
    """Applies a function to an array, and replicates the result; the array may have explicit axes.

    With explicit axes, JAX refuses functions whose result it cannot shard, such as counts or a selection.
    """
    mesh = jax.typeof(array).sharding.mesh
    if not mesh.explicit_axes:
        return function(array)
    sharding = jax.NamedSharding(mesh, jax.P())
    return jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=sharding)(array)


def fixed_output_shardings(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the shardings that a function itself fixes for its results, leaf by leaf; None for other leaves.

    A function fixes them with `jax.jit(..., out_shardings=)`, `jax.shard_map(..., out_specs=)`, `jax.device_put`,
    `jax.lax.with_sharding_constraint` and `jax.sharding.reshard`. Shardings that XLA would choose, or explicit axes
    infer, do not count; nor does a constraint that does not divide the array, for XLA ignores it. Nothing is computed.
    """
    return _find_fixed_shardings(jax.make_jaxpr(function)(*arguments).jaxpr)


def _find_fixed_shardings(jaxpr: Any) -> list[Any]:
    makers = {id(out): (equation, index) for equation in jaxpr.eqns for index, out in enumerate(equation.outvars)}
    inner: dict[int, list[Any]] = {}

    def of(out: Any) -> Any:
        equation, index = makers.get(id(out), (None, 0))
        if equation is None:
            return None
        name, params = equation.primitive.name, equation.params
        if name in _SHARDING_PRIMITIVES:
            return params.get("sharding", params.get("dst_sharding"))
        if name == "device_put":
            return params["devices"][index]
        if name == "shard_map":
            # With some axes left to XLA, the spec is incomplete.
            is_whole = params.get("newly_manual_axes") == frozenset(params["mesh"].axis_names)
            return jax.NamedSharding(params["mesh"], params["out_specs"][index]) if is_whole else None
        if name in _IDENTITY_PRIMITIVES:
            given = equation.invars[1:] if name == "select_n" else equation.invars[index : index + 1]
            return next((found for found in map(of, given) if found is not None), None)
        if (body := called_jaxpr(equation)) is not None:
            sharding = params["out_shardings"][index] if "out_shardings" in params else None
            if isinstance(sharding, jax.sharding.Sharding):
                return sharding
            if id(equation) not in inner:
                inner[id(equation)] = _find_fixed_shardings(body)
            return inner[id(equation)][index]
        return None

    return [_to_concrete(as_sharding(of(out)), out.aval.shape) for out in jaxpr.outvars]


def _to_concrete(sharding: Any, shape: Any) -> Any:
    """Converts a sharding to one on devices.

    None if its abstract mesh is not the mesh context's, if it leaves a dimension open, or if it does not divide an
    array of this shape.
    """
    is_open = isinstance(sharding, jax.NamedSharding) and jax.P.UNCONSTRAINED in tuple(sharding.spec)
    if not isinstance(sharding, jax.sharding.Sharding) or is_open:
        return None
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return None
    if isinstance(sharding, jax.NamedSharding) and isinstance(sharding.mesh, jax.sharding.AbstractMesh):
        current = _current_mesh()
        if current is None or current.abstract_mesh != sharding.mesh:
            return None
        return jax.NamedSharding(current, sharding.spec)
    return sharding


def shardings_of_spec(spec: Any) -> list[Any]:
    """Returns the shardings in a spec, leaf by leaf: those with explicit axes."""
    return [] if spec is specs.UNKNOWN else [_to_concrete(leaf.sharding, leaf.shape) for leaf in jax.tree.leaves(spec)]


def with_explicit_shardings(spec: Any, shardings: Sequence[Any]) -> Any:
    """Adds the shardings that have explicit axes to a spec, as JAX's types have them."""
    if spec is specs.UNKNOWN or not shardings:
        return spec

    def leaf(array: Any, sharding: Any) -> Any:
        if not has_explicit_axes(sharding):
            return array
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    leaves, structure = jax.tree.flatten(spec)
    return structure.unflatten(map(leaf, leaves, shardings))
