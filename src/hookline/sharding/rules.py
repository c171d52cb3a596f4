"""The rules: by size, by path, and by Flax's partitioning metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from hookline import arguments, log
from hookline.sharding.leaf_shardings import (
    Leaf,
    check_axes,
    check_mesh,
    format_names,
    leaves_of,
    make_named_sharding,
    num_shards,
    unflatten_shardings,
)

_logger = log.get_logger(__name__)

_BY_METADATA = "sharding.by_metadata"
# The keys of NNX's metadata; the second and third are those of earlier versions of Flax.
_NNX_KEYS = ("out_sharding", "sharding_names", "sharding")

Rule = Callable[[Any], Any]
"""A function from a state, concrete or abstract, to a tree of the same structure, of shardings and None."""


def fsdp(mesh: Any, *, min_size: int = 2**18, axis: str | tuple[str, ...] | None = None) -> Rule:
    """Splits each large array over one axis, as fully sharded data parallelism does.

    An array is split along the largest dimension that the axis divides. An optimizer's slot has the shape of its
    weights, and is split like them. Smaller arrays are replicated. So is a large array that cannot be split, and a
    warning names it.

    Args:
        mesh: The mesh.
        min_size: The smallest number of elements of an array that is split.
        axis: The axis, or several that count as one. By default the mesh's only axis, or the one named `fsdp`, or else
            `data`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The mesh lacks that axis, or has several with other names.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))  # On devices: jax.make_mesh, with AxisType.Auto.
        >>> state = {"b": jax.ShapeDtypeStruct((1024,), "float32"), "w": jax.ShapeDtypeStruct((512, 1024), "float32")}
        >>> shardings = fsdp(mesh)(state)
        >>> shardings["b"].spec, shardings["w"].spec
        (P(), P(None, 'data'))
    """
    who = "sharding.fsdp"
    check_mesh(who, mesh)
    arguments.check_int(who, "min_size", min_size, at_least=0)
    over = _default_axis(who, mesh) if axis is None else axis
    check_axes(who, "axis", mesh, jax.P(over))
    count = num_shards(mesh, over)

    def rule(state: Any) -> Any:
        found: dict[int, jax.NamedSharding] = {}
        whole = []
        for index, leaf in enumerate(leaves_of(state)):
            if leaf.shape is None:
                continue
            spec = jax.P()
            if leaf.size > 1 and leaf.size >= min_size:
                if fitting := [i for i, length in enumerate(leaf.shape) if length % count == 0]:
                    spec = jax.P(*[None] * max(fitting, key=leaf.shape.__getitem__), over)
                else:
                    whole.append(f"{leaf} {leaf.shape}")
            found[index] = jax.NamedSharding(mesh, spec)
        if whole:
            _logger.warning(
                "%s: each device holds all of %s: no dimension is a multiple of %d, the size of %r.",
                who,
                format_names(whole),
                count,
                over,
            )
        return unflatten_shardings(who, state, found)

    return rule


def _default_axis(who: str, mesh: Any) -> str:
    for name in ("fsdp", "data") if len(mesh.axis_names) > 1 else mesh.axis_names:
        if name in mesh.axis_names:
            return name
    raise ValueError(f"{who} requires axis where a mesh has several, none of them 'fsdp' or 'data': {mesh.axis_names}.")


def by_path(mesh: Any, patterns: Mapping[str, jax.P], *, default: Any = None) -> Rule:
    """Gives each array the spec of the first pattern found in its path.

    Paths are written as in checkpoints, such as `params/dense/kernel`. The pattern `dense/kernel` also matches
    `opt_state/0/mu/dense/kernel`, a slot of Optax. An array of one element is replicated and needs no pattern.

    Args:
        mesh: The mesh.
        patterns: Regular expressions, for `re.search`, with the spec of the arrays whose path matches. The last may be
            ".*", which matches all.
        default: The shardings of arrays that no pattern matches: another rule, or shardings as `Loop` takes them. By
            default such an array is an error.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A pattern is not a regular expression, or its spec has an axis that the mesh lacks. The returned
            rule raises it if no pattern matches a path, or a spec does not fit its array.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))
        >>> rule = by_path(mesh, {"kernel": jax.P("data", "model"), ".*": jax.P()})
        >>> layer = {"bias": jax.ShapeDtypeStruct((4,), "float32"), "kernel": jax.ShapeDtypeStruct((8, 4), "float32")}
        >>> shardings = rule({"dense": layer})
        >>> shardings["dense"]["bias"].spec, shardings["dense"]["kernel"].spec
        (P(), P('data', 'model'))
    """
    who = "sharding.by_path"
    check_mesh(who, mesh)
    specs = dict(arguments.check_mapping(who, "patterns", patterns))
    for pattern, spec in specs.items():
        _check_pattern(who, mesh, pattern, spec)

    def rule(state: Any) -> Any:
        leaves = {index: leaf for index, leaf in enumerate(leaves_of(state)) if leaf.shape is not None}
        matching = {i: [pattern for pattern in specs if re.search(pattern, leaf.path)] for i, leaf in leaves.items()}
        found: dict[int, jax.NamedSharding] = {}
        for index, leaf in leaves.items():
            if leaf.size == 1:
                found[index] = jax.NamedSharding(mesh, jax.P())
            elif matching[index]:
                found[index] = make_named_sharding(who, leaf, mesh, specs[matching[index][0]])
        left = [leaf for index, leaf in leaves.items() if index not in found]
        if left and default is None:
            raise ValueError(
                f"{who}: no pattern matches {format_names(left)}. Add one; '.*': jax.P(), as the last, "
                f"replicates the rest."
            )
        for pattern in specs:
            inside = [index for index, several in matching.items() if pattern in several]
            if not inside:
                _logger.warning("%s: the pattern %r matches no path.", who, pattern)
            elif len(inside) < len(leaves) and all(leaves[i].size > 1 and matching[i][0] != pattern for i in inside):
                _logger.warning("%s: the pattern %r is never used: earlier ones match all its paths.", who, pattern)
        return unflatten_shardings(who, state, found, default)

    return rule


def _check_pattern(who: str, mesh: Any, pattern: Any, spec: Any) -> None:
    try:
        re.compile(arguments.check_str(who, "a pattern", pattern))
    except re.error as exc:
        raise ValueError(f"{who}: the pattern {pattern!r} is no regular expression: {exc}.") from exc
    if not isinstance(spec, jax.P):
        raise TypeError(f"{who} requires a jax.P(...) for the pattern {pattern!r}, got {spec!r}.")
    check_axes(who, f"the spec {spec} of the pattern {pattern!r}", mesh, spec)


def by_metadata(mesh: Any, rules: Sequence[tuple[str, Any]] | None = None, *, default: Any = None) -> Rule:
    """Gives each array the spec in Flax's partitioning metadata.

    The metadata is in the state: `nn.with_partitioning` and `nn.with_logical_partitioning` put it around the arrays of
    `module.init`, Optax copies it to its slots, and NNX has it in each `nnx.Variable`, so `nnx.state` and `nnx.split`
    keep it.

    Args:
        mesh: The mesh.
        rules: Flax's rules for logical axes: pairs of a logical axis and a mesh axis, a tuple of several, or None.
            Rules of the model itself come first. By default those of `nn.logical_axis_rules`.
        default: The shardings of arrays without metadata: another rule, such as `fsdp(mesh)`, or shardings as `Loop`
            takes them. By default they are replicated.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: One of `rules` has an axis that the mesh lacks. The returned rule raises it if logical axes have no
            rules, or a spec does not fit its array.

    Example:
        >>> from flax import linen as nn
        >>> model = nn.Dense(4, kernel_init=nn.with_partitioning(nn.initializers.ones, (None, "model")))
        >>> abstract = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), "float32"))
        >>> shardings = by_metadata(jax.sharding.AbstractMesh((2,), ("model",)))(abstract)
        >>> shardings["params"]["bias"].spec, shardings["params"]["kernel"].value.spec
        (P(), P(None, 'model'))

    References:
        `nn.get_sharding`, `nn.logical_to_mesh_sharding` and `nnx.get_named_sharding`. Differences: logical axes without
        any rules are an error, and names without a rule are logged.
    """
    check_mesh(_BY_METADATA, mesh)
    pairs = (
        None
        if rules is None
        else [_check_rule(mesh, rule) for rule in arguments.check_list(_BY_METADATA, "rules", rules)]
    )

    def rule(state: Any) -> Any:
        found: dict[int, jax.NamedSharding] = {}
        unknown: dict[str, None] = {}
        for index, leaf in enumerate(leaves_of(state)):
            spec = None if leaf.shape is None else _metadata_spec(leaf, pairs, unknown)
            if spec is not None:
                spec = jax.P() if leaf.size == 1 else spec
                found[index] = make_named_sharding(
                    _BY_METADATA, leaf, mesh, spec, "Give rules=, if it is a logical axis."
                )
            elif leaf.shape is not None and default is None:
                found[index] = jax.NamedSharding(mesh, jax.P())
        if unknown:
            _logger.warning(
                "%s: no rule has the logical axis %s, so nothing is split there. To accept that, add (%r, None).",
                _BY_METADATA,
                format_names([*map(repr, unknown)]),
                next(iter(unknown)),
            )
        return unflatten_shardings(_BY_METADATA, state, found, default)

    return rule


def _check_rule(mesh: Any, rule: Any) -> tuple[str, Any]:
    if not isinstance(rule, tuple | list) or len(rule) != 2:
        raise TypeError(
            f"{_BY_METADATA} requires pairs of a logical axis and an axis of the mesh as rules, got {rule!r}."
        )
    name, axes = rule[0], tuple(rule[1]) if isinstance(rule[1], list) else rule[1]
    check_axes(_BY_METADATA, f"the rule for {name!r}", mesh, jax.P(axes))
    return name, axes


def _metadata_spec(leaf: Leaf, rules: Any, unknown: dict[str, None]) -> jax.P | None:
    """Returns the spec in the metadata of an array, or None; adds logical axes without a rule to `unknown`."""
    if leaf.box is None:
        return None
    from flax import linen as nn
    from flax.linen import spmd

    box, rules = leaf.box, nn.get_logical_axis_rules() if rules is None else rules
    if hasattr(type(box), "get_metadata"):
        metadata = box.get_metadata()
        names = next((metadata[key] for key in _NNX_KEYS if metadata.get(key)), None)
        return (
            None
            if names is None
            else _translate_names(getattr(names, "spec", names), rules, metadata.get("sharding_rules"))
        )
    if not hasattr(box, "rules"):
        return _translate_names(box.names, rules, None)
    rules = rules if box.rules is None else box.rules
    logical = [name for name in box.names if isinstance(name, str)]
    if logical and not rules:
        raise ValueError(
            f"{_BY_METADATA}: {leaf} has the logical axes {format_names([*map(repr, logical)])}, and there are no "
            f"rules for them. Give rules=, pairs of such an axis and an axis of the mesh."
        )
    known = {name for name, _ in rules}
    unknown.update(dict.fromkeys(name for name in logical if name not in known))
    return spmd.logical_to_mesh_axes(box.names, rules)


def _translate_names(names: Any, rules: Any, own: Any) -> jax.P:
    """Translates names to a spec; names without a rule are axes of the mesh."""
    meant = {**dict(rules), **dict(own or ())}
    return jax.P(*(meant.get(name, name) for name in names))
