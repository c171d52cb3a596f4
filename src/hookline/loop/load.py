"""load: finds a checkpoint and reads the state of a training, without a graph or a session."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp

from hookline import arguments
from hookline.checkpoint import CheckpointState, get_checkpoint_state, latest_checkpoint, list_variables, load_variable
from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory import leaves as fitting
from hookline.checkpoint.directory.manifest import Entry, Leaf, Manifest
from hookline.checkpoint.restoring import foreign, reading
from hookline.checkpoint.restoring.foreign import Weights
from hookline.checkpoint.saving.contents import HOOK_STATES
from hookline.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from hookline.graph.nodes import spec as specs
from hookline.loop.passes import BATCHES
from hookline.loop.step.leaf_types import are_nnx, is_number, is_weak
from hookline.loop.step.state_forms import NnxState, PytreeState
from hookline.paths import flatten_with_paths

STATE = "state"
"""The name of the state's variable, also in checkpoints."""
AVERAGE = "average"
"""The name of the variable of the moving averages."""
# The name of the best checkpoint's step in the saved state of an `Evaluate` hook.
_KEPT_STEP = re.compile(r"hooks/.*/kept/2")


def find_checkpoint(who: str, path: str, step: int | str) -> str:
    """Finds the checkpoint of a step.

    Args:
        who: The caller, for messages.
        path: The directory of a training; or a checkpoint.
        step: "latest", "best" (the checkpoint that `Evaluate(keep_best=...)` kept), or a global step.

    Raises:
        NotFoundError: There is no such checkpoint.
        ValueError: `step` is unknown, or was given with a checkpoint.
    """
    if layout.locate(path) is not None:
        if step != "latest":
            raise ValueError(
                f"{who} was given a checkpoint, '{path}', and step={step!r}: give its directory, or leave out the step."
            )
        return path
    check_step(who, step)
    state = get_checkpoint_state(path)
    if state is None:
        return path  # Reading it raises the error.
    if step == "latest":
        return reading.resolve_checkpoint(path, who, "path")
    known = {candidate: candidate.rpartition("-")[2] for candidate in state.all_model_checkpoint_paths}
    if step == "best":
        if state.best is None:
            raise NotFoundError.from_message(f"'{path}' has no best checkpoint{_why_no_best(state)}")
        return state.best
    found = [candidate for candidate, number in known.items() if number.isdecimal() and int(number) == step]
    if not found:
        raise NotFoundError.from_message(
            f"'{path}' has no checkpoint of step {step}. It has those of: {', '.join(known.values())}."
        )
    return found[-1]


def _why_no_best(state: CheckpointState) -> str:
    """Returns the end of an error message: the reason why there is no best checkpoint."""
    lost = state.lost_best
    if lost is None:  # In a copied directory the state file may lack it; the saved state of `Evaluate` has the step.
        newest = state.model_checkpoint_path
        leaves = layout.read_manifest(newest)[1].leaves.values()
        steps = [leaf.value for leaf in leaves if _KEPT_STEP.fullmatch(leaf.name) and leaf.kind == "int"]
        if steps:
            lost = f"{layout.base_path(newest)}-{steps[0]}"
    if lost is None:
        return ": train.Evaluate(..., keep_best=...) keeps one."
    return (
        f" any more: it was '{lost}', of step {lost.rpartition('-')[2]}, which is gone. A training that continues with "
        f"train.Evaluate(..., keep_best=...) keeps the best of its next evaluations."
    )


def check_step(who: str, step: int | str) -> None:
    """Raises `ValueError` for an unknown name of a step."""
    if isinstance(step, str) and step not in ("latest", "best"):
        raise ValueError(f"{who} requires 'latest', 'best' or a global step as step, got {step!r}.")


def find_root(manifest: Manifest, prefix: str = "") -> str:
    """Returns the full name of a part of a checkpoint: below a loop's state, if it has that part; else as given."""
    inside = f"{STATE}/{prefix}" if prefix else STATE
    names = [name for _, name, _ in _named_leaves(manifest)]
    return inside if any(name == inside or name.startswith(f"{inside}/") for name in names) else prefix


def leaves_below(manifest: Manifest, root: str, *, averaged: bool = False) -> dict[str, Leaf]:
    """Returns the leaves of a part by their paths in it: of one variable, else of all variables below that name.

    With `averaged`, moving averages replace the averaged leaves.
    """
    start = f"{root}/" if root else ""
    found = [named for named in _named_leaves(manifest) if named[1] == root or named[1].startswith(start)]
    # A variable's averages may be variables below its name (`w/average`): only the leaves of `w` itself are returned.
    own = [named for named in found if named[0] == root or root.startswith(f"{named[0]}/")]
    leaves = {name[len(start) :] if name != root else "": leaf for _, name, leaf in own or found}
    if averaged and root.partition("/")[0] == STATE:
        averages = leaves_below(manifest, AVERAGE + root.removeprefix(STATE))
        leaves |= {path: leaf for path, leaf in averages.items() if path in leaves}
    return leaves


def _named_leaves(manifest: Manifest) -> list[tuple[str, str, Leaf]]:
    """Returns all leaves, each with the name of its variable and its full name."""
    return [
        (name, f"{name}/{leaf.path}" if leaf.path else name, leaf)
        for name, entry in manifest.variables.items()
        for leaf in entry.leaves
    ]


def check_repeatable(logdir: str | None) -> None:
    """Checks that a loop whose batches are an iterator has no position in the data to resume from.

    Raises:
        FailedPreconditionError: The training of the newest checkpoint in the directory had used batches.
    """
    path = latest_checkpoint(logdir) if logdir else None
    names = [name for name, _ in list_variables(path)] if path else []
    if path and f"{BATCHES}/count" in names and load_variable(path, f"{BATCHES}/count"):
        raise FailedPreconditionError.from_message(
            f"Loop cannot resume from '{path}': its batches are an iterator, which cannot be set to the position of "
            f"the checkpoint. Give a function that makes it, `lambda: batches()`, or a source with a state. To start "
            f"over in the data each time, give Loop resume_data=False.",
        )


_ADVICE = (
    "Give a `like` with the structure, shapes and dtypes of the trained state, and for a part of it the prefix of that "
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
    """Reads the state of a training, or a part of it, from one of its checkpoints; or weights of another library.

    It needs neither a graph nor a session, and does not lock the directory: a training may be saving there.

    Args:
        path: The directory of the training; a checkpoint; or the weights of another library, as for `WarmStart`: a
            safetensors, npz or Flax msgpack file, or a directory of Orbax.
        like: A state like the trained one: arrays, `jax.ShapeDtypeStruct`, or both. For NNX objects, the objects as
            they were given to the `Loop`, one or a tuple; they may be abstract (`nnx.eval_shape`). Leaves that are no
            arrays are returned as they are. None returns nested dicts by name, with NumPy arrays for weights of another
            library.
        step: "latest", "best" (the checkpoint that `Evaluate(keep_best=...)` kept), or a global step.
        prefix: If `like` is a part of the state, the path of that part: "params", or "0" for the first of a tuple. For
            a training with a graph, the name of a variable, or a common prefix of several names up to a slash.
        sharding: A `jax.Device` or `Sharding` for all arrays, or a tree of them with the structure of `like`. By
            default each array has the sharding of its array in `like`.
        averaged: Whether to read the moving averages of `Loop(ema=...)` instead of the averaged leaves.

    Returns:
        A value with the structure of `like`; new objects for NNX.

    Raises:
        NotFoundError: There is no such checkpoint; it lacks arrays (the message names all of them); or it has no
            averages.
        InvalidArgumentError: Arrays differ in shape or dtype; the message names all of them.
        DataLossError: Its files are broken, or the newest checkpoint was replaced by something else.
        ValueError: `step` is unknown; or `averaged` is given without a `like`, or for weights of another library.
        TypeError: `path` is not a path, or `prefix` is not a string.

    Example:
        >>> import hookline as hl, jax.numpy as jnp, numpy as np, tempfile
        >>> def train_step(state, batch):
        ...     return {"params": {"w": state["params"]["w"] + 1}, "seen": state["seen"] + len(batch)}, {}
        >>> state = {"params": {"w": jnp.zeros(2)}, "seen": jnp.zeros((), int)}
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     _ = hl.train.Loop(train_step, state, hl.data.from_arrays(np.arange(12), 4)).run(logdir)
        ...     print(load(logdir, like=state["params"], prefix="params"))
        {'w': Array([3., 3.], dtype=float32)}

    References:
        None in `tf.train`; `tf.train.load_variable` reads one name.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"load requires a name as prefix, '' for the whole state, got {prefix!r}.")
    path = arguments.check_path("load", "path", path)
    if (weights := foreign.find("load", path, step)) is not None:
        return _load_foreign(weights, like, prefix.strip("/"), sharding, averaged)
    path = find_checkpoint("load", path, step)
    manifest = layout.read_manifest(path)[1]
    root = find_root(manifest, prefix.strip("/"))
    is_empty = like is not None and not jax.tree.leaves(like)  # The state of an optimizer without numbers.
    if prefix and not is_empty and not leaves_below(manifest, root):
        raise NotFoundError.from_message(
            f"Checkpoint '{path}' has nothing called {prefix!r}. It has: {', '.join(_parts(manifest))}. The "
            "parts of a tuple are numbers, from 0; train.list_variables shows all names."
        )
    there = _averaged_leaves(path, manifest, root, like) if averaged else leaves_below(manifest, root)
    if like is None:
        return load_variable(path, root) if root else {name: load_variable(path, name) for name in manifest.variables}
    form = NnxState(like) if are_nnx(like) else PytreeState(_with_saved_dtypes(like, there))
    # Averages of 16-bit floats are saved in float32.
    wanted = _widened(form.values, leaves_below(manifest, root), there) if averaged else form.values
    shardings = {root: _shardings(form.values, sharding)}
    found = reading.read(
        path, lambda manifest: {root: _match(path, manifest, root, wanted, averaged)}, shardings=shardings
    )[root]
    if averaged:
        narrowed = lambda leaf, own: leaf if leaf.dtype == own.dtype else leaf.astype(own.dtype)  # noqa: E731
        found = jax.tree.map(narrowed, found, form.values)
    return form.to_state(found)


def _parts(manifest: Manifest) -> list[str]:
    """Returns the names of the parts of a loop's state; without one, the beginnings of the names of variables."""
    names = [name for _, name, _ in _named_leaves(manifest) if not name.startswith(HOOK_STATES)]
    inside = [name.removeprefix(f"{STATE}/") for name in names if name.startswith(f"{STATE}/")]
    return [*dict.fromkeys(name.partition("/")[0] for name in inside or names)]


def _load_foreign(weights: Weights, like: Any, prefix: str, sharding: Any, averaged: bool) -> Any:
    if averaged:
        raise ValueError(
            f"load can read averages only from checkpoints of train.Loop(ema=...), and '{weights.path}' is not one."
        )
    start = f"{prefix}/" if prefix else ""
    there = {name[len(start) :]: leaf for name, leaf in weights.leaves.items() if f"{name}/".startswith(start)}
    if not there:
        known = ", ".join(weights.leaves) or "nothing"
        raise NotFoundError.from_message(f"'{weights.path}' has nothing called {prefix!r}. It has: {known}.")
    if like is None:
        read = weights.read({leaf.name: _as_stored(weights.path, leaf) for leaf in there.values()})
        return _nested(weights.path, {name: read[leaf.name] for name, leaf in there.items()})
    form = NnxState(like) if are_nnx(like) else PytreeState(_with_saved_dtypes(like, there))
    name = prefix or "."
    part = Entry(tuple(dataclasses.replace(leaf, path=relative) for relative, leaf in there.items()))
    match = fitting.match_variables(
        weights.path, {name: part}, {name: form.values}, what="`like`", where="like", advice=_ADVICE
    )[name]
    wanted = {
        leaf.name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=leaf_sharding)
        for leaf, leaf_sharding in zip(match.leaves, _shardings(form.values, sharding), strict=True)
    }
    read = weights.read(wanted)
    return form.to_state(match.structure.unflatten([jnp.asarray(read[leaf.name]) for leaf in match.leaves]))


def _as_stored(path: str, leaf: Leaf) -> jax.ShapeDtypeStruct:
    with contextlib.suppress(TypeError):
        if not (spec := _spec(leaf)).dtype.hasobject:
            return spec
    what = f"{leaf.name!r} of dtype {leaf.dtype}, which JAX lacks"
    raise InvalidArgumentError.from_message(f"'{path}' has {what}. Give the prefix of another part.")


def _nested(path: str, arrays: dict[str, Any]) -> Any:
    """Converts arrays by path to nested dicts."""
    if arrays.keys() == {""}:
        return arrays[""]
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = (part.replace("%2F", "/").replace("%25", "%") for part in name.split("/"))
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or last in node or not name:
            raise ValueError(f"load: '{path}' has an array below another one, {name!r}. Give a prefix, or a `like`.")
        node[last] = array
    return tree


def _averaged_leaves(path: str, manifest: Manifest, root: str, like: Any) -> dict[str, Leaf]:
    if like is None:
        raise ValueError("load requires a `like` where averaged=True.")
    there = leaves_below(manifest, root, averaged=True)
    if there == leaves_below(manifest, root):
        raise NotFoundError.from_message(
            f"Checkpoint '{path}' holds no moving averages of '{root}': train.Loop(..., ema=0.999) makes them.",
        )
    return there


def _with_saved_dtypes(like: Any, there: dict[str, Leaf]) -> Any:
    """Replaces weakly typed leaves in `like` by specs, because the training may have given them another dtype."""

    def typed(path: str, leaf: Any) -> Any:
        if path in there and is_number(leaf):
            return _spec(there[path])
        if path in there and isinstance(leaf, jax.Array) and is_weak(leaf):
            return jax.ShapeDtypeStruct(leaf.shape, _spec(there[path]).dtype, sharding=leaf.sharding)
        return leaf

    pairs, structure = flatten_with_paths(like)
    return structure.unflatten([typed(path, leaf) for path, leaf in pairs])


def _widened(values: Any, plain: dict[str, Leaf], there: dict[str, Leaf]) -> Any:
    """Returns the specs of the values, with the saved, possibly wider dtypes for averages."""

    def widened(path: str, leaf: Any) -> Any:
        is_average = path in there and there[path] != plain[path] and plain[path].dtype == str(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(there[path].dtype)) if is_average else leaf

    pairs, structure = flatten_with_paths(specs.of_value(values))
    return structure.unflatten([widened(path, leaf) for path, leaf in pairs])


def _spec(leaf: Leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))


def _match(path: str, manifest: Manifest, root: str, wanted: Any, averaged: bool) -> fitting.Match:
    there = leaves_below(manifest, root, averaged=averaged)
    if not root:  # In a checkpoint of a training with a graph there are other variables beside those of `like`.
        tops = {name.partition("/")[0] for name, _ in flatten_with_paths(wanted)[0]}
        there = {name: leaf for name, leaf in there.items() if name.partition("/")[0] in tops}
    part = Entry(tuple(dataclasses.replace(leaf, path=relative) for relative, leaf in there.items()))
    name = root or "."
    return fitting.match_variables(path, {name: part}, {name: wanted}, what="`like`", where="like", advice=_ADVICE)[
        name
    ]


def _shardings(wanted: Any, sharding: Any) -> list[Any]:
    """Returns the sharding of each array; `None` lets JAX choose."""
    leaves = jax.tree.leaves(wanted)
    if sharding is None:
        return [
            leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else specs.placed_sharding(leaf) for leaf in leaves
        ]
    given = [
        jax.sharding.SingleDeviceSharding(each) if isinstance(each, jax.Device) else each
        for each in jax.tree.leaves(sharding)
    ]
    if len(given) not in (1, len(leaves)) or not all(isinstance(each, jax.sharding.Sharding) for each in given):
        raise ValueError(
            f"load requires one device or sharding, or one for each of the {len(leaves)} arrays, got {sharding!r}."
        )
    return given * len(leaves) if len(given) == 1 else given
