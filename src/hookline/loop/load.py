"""load: what a training has come to, without a graph and without a session."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from hookline import arguments
from hookline.checkpoint import fitting, layout, load_variable, reading
from hookline.checkpoint import leaves as paths
from hookline.checkpoint.manifest import Entry, Leaf, Manifest
from hookline.errors import NotFoundError
from hookline.graph import spec as specs
from hookline.loop.forms import NnxObjects, Tree
from hookline.loop.kinds import are_nnx, is_number
from hookline.loop.saved import below, checkpoint_of, root_of

_ADVICE = (
    "Give a `like` of the structure, shapes and dtypes that were trained, and for a part of it the prefix of that "
    "part; train.list_variables shows the names."
)


def load(
    path: str,
    like: Any = None,
    *,
    step: int | str = "latest",
    prefix: str = "",
    sharding: Any = None,
    averaged: bool = False,
) -> Any:
    """Returns the state of a training, or a part of it, from one of its checkpoints.

    It needs neither graph nor session, and takes no lease: a training may go on in that directory meanwhile.

    Args:
        path: The directory of the training; or a checkpoint.
        like: A state like the one that was trained: arrays, `jax.ShapeDtypeStruct`, or both. NNX objects as they were
            given to the `Loop`, one or a tuple; an abstract one (`nnx.eval_shape`) will do. What is no array comes from
            it as it is. None gives dicts by name.
        step: "latest", "best" (what `Evaluate(keep_best=...)` kept), or a global step.
        prefix: Which part `like` is: "params", or "0" for the first of a tuple. Of a training with a graph the name of
            a variable, or what stands before the slash in the names of several.
        sharding: Where to put it: a `jax.Device` or `Sharding` for all of it, or a tree of them in the structure of
            `like`. By default each array goes where that of `like` lies, or is said to lie.
        averaged: Whether to take the moving averages of `Loop(ema=...)` in the place of what they are averages of.

    Returns:
        A value of the structure of `like`; of NNX objects new ones.

    Raises:
        NotFoundError: There is no such checkpoint, or something is missing in it; all that is missing is named. Or it
            has no averages.
        InvalidArgumentError: Something has another shape or dtype; all of it is named.
        DataLossError: Its files are broken, or something else is in the place of the newest.
        ValueError: An unknown `step`; or averages are wanted without a `like`.
        TypeError: `path` is no path, or `prefix` no text.

    Example:
        >>> import hookline as hl, jax.numpy as jnp, numpy as np, tempfile
        >>> def train_step(state, batch):
        ...     return {"params": {"w": state["params"]["w"] + 1}, "seen": state["seen"] + len(batch)}, {}
        >>> state = {"params": {"w": jnp.zeros(2)}, "seen": jnp.zeros((), int)}
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     _ = hl.train.Loop(train_step, state, hl.data.arrays(np.arange(12), 4)).run(logdir)
        ...     print(load(logdir, like=state["params"], prefix="params"))
        {'w': Array([3., 3.], dtype=float32)}

    References:
        None in `tf.train`; `tf.train.load_variable` reads one name.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"load requires a name as prefix, '' for all of the state, got {prefix!r}.")
    path = checkpoint_of("load", arguments.path("load", "path", path), step)
    manifest = layout.read_manifest(path)[1]
    root = root_of(manifest, prefix.strip("/"))
    there = _averaged(path, manifest, root, like) if averaged else below(manifest, root)
    if like is None:
        return load_variable(path, root) if root else {name: load_variable(path, name) for name in manifest.variables}
    form = NnxObjects(like) if are_nnx(like) else Tree(_with_numbers(like, there))
    # Averages of narrow numbers are wider than these.
    wanted = _widened(form.values, below(manifest, root), there) if averaged else form.values
    places = {root: _places(form.values, sharding)}
    found = reading.read(
        path, lambda manifest: {root: _match(path, manifest, root, wanted, averaged)}, shardings=places
    )[root]
    if averaged:
        narrowed = lambda leaf, own: leaf if leaf.dtype == own.dtype else leaf.astype(own.dtype)  # noqa: E731
        found = jax.tree.map(narrowed, found, form.values)
    return form.whole(found)


def _averaged(path: str, manifest: Manifest, root: str, like: Any) -> dict[str, Leaf]:
    if like is None:
        raise ValueError("load requires a `like` where averaged=True.")
    there = below(manifest, root, averaged=True)
    if there == below(manifest, root):
        raise NotFoundError(
            None,
            None,
            f"Checkpoint '{path}' holds no moving averages of '{root}': train.Loop(..., ema=0.999) makes them.",
        )
    return there


def _with_numbers(like: Any, there: dict[str, Leaf]) -> Any:
    """Returns it with arrays for those numbers of Python of which the training has made arrays."""
    pairs, structure = paths.with_paths(like)
    return structure.unflatten(
        [_spec(there[path]) if is_number(leaf) and path in there else leaf for path, leaf in pairs]
    )


def _widened(values: Any, plain: dict[str, Leaf], there: dict[str, Leaf]) -> Any:
    """Returns the values as specs, of which averages have the dtype that they are kept in."""

    def widened(path: str, leaf: Any) -> Any:
        is_average = path in there and there[path] != plain[path] and plain[path].dtype == str(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(there[path].dtype)) if is_average else leaf

    pairs, structure = paths.with_paths(specs.of_value(values))
    return structure.unflatten([widened(path, leaf) for path, leaf in pairs])


def _spec(leaf: Leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))


def _match(path: str, manifest: Manifest, root: str, wanted: Any, averaged: bool) -> fitting.Match:
    there = below(manifest, root, averaged=averaged)
    if not root:  # A training with a graph has more in its checkpoints than variables.
        tops = {name.partition("/")[0] for name, _ in paths.with_paths(wanted)[0]}
        there = {name: leaf for name, leaf in there.items() if name.partition("/")[0] in tops}
    part = Entry(tuple(dataclasses.replace(leaf, path=relative) for relative, leaf in there.items()))
    alone = dataclasses.replace(manifest, variables={root or ".": part})
    return fitting.fit(path, alone, {root or ".": wanted}, what="`like`", where="like", advice=_ADVICE)[root or "."]


def _places(wanted: Any, sharding: Any) -> list[Any]:
    """Returns for each array where to put it; `None` where JAX may choose."""
    leaves = jax.tree.leaves(wanted)
    if sharding is None:
        return [leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else specs.place_of(leaf) for leaf in leaves]
    given = [
        jax.sharding.SingleDeviceSharding(place) if isinstance(place, jax.Device) else place
        for place in jax.tree.leaves(sharding)
    ]
    if len(given) not in (1, len(leaves)) or not all(isinstance(place, jax.sharding.Sharding) for place in given):
        raise ValueError(
            f"load requires one device or sharding, or one for each of the {len(leaves)} arrays, got {sharding!r}."
        )
    return given * len(leaves) if len(given) == 1 else given
