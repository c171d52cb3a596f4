"""load: what a training has come to, without a graph and without a session."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from hookline import arguments
from hookline.checkpoint import fitting, get_checkpoint_state, layout, load_variable, reading
from hookline.checkpoint import leaves as paths
from hookline.checkpoint.manifest import Entry, Leaf, Manifest
from hookline.errors import NotFoundError
from hookline.graph import spec as specs
from hookline.loop.forms import NnxObjects, Tree
from hookline.loop.kinds import are_nnx, is_number
from hookline.loop.loop import STATE

_ADVICE = (
    "Give a `like` of the structure, shapes and dtypes that were trained, and for a part of it the prefix of that "
    "part; train.list_variables shows the names."
)


def load(path: str, like: Any = None, *, step: int | str = "latest", prefix: str = "", sharding: Any = None) -> Any:
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

    Returns:
        A value of the structure of `like`; of NNX objects new ones.

    Raises:
        NotFoundError: There is no such checkpoint, or something is missing in it; all that is missing is named.
        InvalidArgumentError: Something has another shape or dtype; all of it is named.
        DataLossError: Its files are broken, or something else is in the place of the newest.
        ValueError: An unknown `step`.
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
    path = _checkpoint(arguments.path("load", "path", path), step)
    manifest = layout.read_manifest(path)[1]
    root = _root(manifest, prefix.strip("/"))
    if like is None:
        return load_variable(path, root) if root else {name: load_variable(path, name) for name in manifest.variables}
    form = NnxObjects(like) if are_nnx(like) else Tree(_with_numbers(like, manifest, root))
    places = {root: _places(form.values, sharding)}
    found = reading.read(path, lambda manifest: {root: _match(path, manifest, root, form.values)}, shardings=places)
    return form.whole(found[root])


def _checkpoint(path: str, step: int | str) -> str:
    """Returns the checkpoint that is meant."""
    if layout.locate(path) is not None:
        if step != "latest":
            raise ValueError(
                f"load was given a checkpoint, '{path}', and step={step!r}: give its directory, or no step."
            )
        return path
    if isinstance(step, str) and step not in ("latest", "best"):
        raise ValueError(f"load requires 'latest', 'best' or a global step as step, got {step!r}.")
    state = get_checkpoint_state(path)
    if state is None:
        return path  # Whoever reads it says what is there instead.
    if step == "latest":
        return reading.checkpoint_at(path, "load", "path")
    known = {candidate: candidate.rpartition("-")[2] for candidate in state.all_model_checkpoint_paths}
    if step == "best":
        if state.best is None:
            raise NotFoundError(
                None, None, f"'{path}' has no best checkpoint: train.Evaluate(..., keep_best=...) keeps one."
            )
        return state.best
    found = [candidate for candidate, number in known.items() if number.isdecimal() and int(number) == step]
    if not found:
        raise NotFoundError(
            None, None, f"'{path}' has no checkpoint of step {step}. There are those of: {', '.join(known.values())}."
        )
    return found[-1]


def _root(manifest: Manifest, prefix: str) -> str:
    """Returns the name of the part: below the state of a loop, if there is one; else below the variables."""
    inside = f"{STATE}/{prefix}" if prefix else STATE
    names = [name for _, name, _ in _named(manifest)]
    return inside if any(name == inside or name.startswith(f"{inside}/") for name in names) else prefix


def _named(manifest: Manifest) -> list[tuple[str, str, Leaf]]:
    """Returns the leaves with their variables and their names: that of the variable, and the path in it."""
    return [
        (name, f"{name}/{leaf.path}" if leaf.path else name, leaf)
        for name, entry in manifest.variables.items()
        for leaf in entry.leaves
    ]


def _below(manifest: Manifest, root: str) -> dict[str, Leaf]:
    """Returns the leaves of a part by their paths in it: a part of one variable, or else of all below that name."""
    start = f"{root}/" if root else ""
    found = [named for named in _named(manifest) if named[1] == root or named[1].startswith(start)]
    # Averages of a part are called as the part is, and something more.
    own = [named for named in found if named[0] == root or root.startswith(f"{named[0]}/")]
    return {name[len(start) :] if name != root else "": leaf for _, name, leaf in own or found}


def _with_numbers(like: Any, manifest: Manifest, root: str) -> Any:
    """Returns it with arrays for those numbers of Python of which the training has made arrays."""
    below = _below(manifest, root)
    pairs, structure = paths.with_paths(like)
    return jax.tree.unflatten(
        structure,
        [
            jax.ShapeDtypeStruct(below[path].shape, jnp.dtype(below[path].dtype))
            if is_number(leaf) and path in below
            else leaf
            for path, leaf in pairs
        ],
    )


def _match(path: str, manifest: Manifest, root: str, wanted: Any) -> fitting.Match:
    below = _below(manifest, root)
    if not root:  # A training with a graph has more in its checkpoints than variables.
        tops = {name.partition("/")[0] for name, _ in paths.with_paths(wanted)[0]}
        below = {name: leaf for name, leaf in below.items() if name.partition("/")[0] in tops}
    part = Entry(tuple(dataclasses.replace(leaf, path=relative) for relative, leaf in below.items()))
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
