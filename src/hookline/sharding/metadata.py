"""The rule that follows Flax's partitioning metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hookline import arguments, log
from hookline.sharding.fitting import check_axes, check_mesh, spread, tree_of
from hookline.sharding.leaves import Leaf, leaves_of, listed
from hookline.sharding.rules import Rule

_logger = log.of(__name__)
_WHO = "sharding.by_metadata"


def by_metadata(mesh: Any, rules: Sequence[tuple[str, Any]] | None = None, *, otherwise: Any = None) -> Rule:
    """Gives each array the spec in Flax's partitioning metadata.

    The metadata is in the state: `nn.with_partitioning` and `nn.with_logical_partitioning` put it around the arrays of
    `module.init`, Optax copies it to its slots, and NNX has it in each `nnx.Variable`, so `nnx.state` and `nnx.split`
    keep it.

    Args:
        mesh: The mesh.
        rules: Flax's rules for logical axes: pairs of a logical axis and a mesh axis, a tuple of several, or None.
            Rules of the model itself come first. By default those of `nn.logical_axis_rules`.
        otherwise: The shardings of arrays without metadata: another rule, such as `fsdp(mesh)`, or shardings as `Loop`
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
    check_mesh(_WHO, mesh)
    pairs = None if rules is None else [_pair(mesh, rule) for rule in arguments.several(_WHO, "rules", rules)]

    def rule(state: Any) -> Any:
        found: dict[int, jax.NamedSharding] = {}
        unknown: dict[str, None] = {}
        for index, leaf in enumerate(leaves_of(state)):
            spec = None if leaf.shape is None else _spec_of(leaf, pairs, unknown)
            if spec is not None:
                spec = jax.P() if leaf.size == 1 else spec
                found[index] = spread(_WHO, leaf, mesh, spec, "Give rules=, if it is a logical axis.")
            elif leaf.shape is not None and otherwise is None:
                found[index] = jax.NamedSharding(mesh, jax.P())
        if unknown:
            _logger.warning(
                "%s: no rule has the logical axis %s, so nothing is split there. A rule that says so: (%r, None).",
                _WHO,
                listed([*map(repr, unknown)]),
                next(iter(unknown)),
            )
        return tree_of(_WHO, state, found, otherwise)

    return rule


def _pair(mesh: Any, rule: Any) -> tuple[str, Any]:
    if not isinstance(rule, tuple | list) or len(rule) != 2:
        raise TypeError(f"{_WHO} requires pairs of a logical axis and an axis of the mesh as rules, got {rule!r}.")
    name, axes = rule[0], tuple(rule[1]) if isinstance(rule[1], list) else rule[1]
    check_axes(_WHO, f"the rule for {name!r}", mesh, jax.P(axes))
    return name, axes


def _spec_of(leaf: Leaf, rules: Any, unknown: dict[str, None]) -> jax.P | None:
    """Returns the spec in the metadata of an array, or None; adds logical axes without a rule to `unknown`."""
    if leaf.box is None:
        return None
    from flax import linen as nn
    from flax.linen import spmd

    box, rules = leaf.box, nn.get_logical_axis_rules() if rules is None else rules
    if hasattr(type(box), "get_metadata"):
        metadata = box.get_metadata()
        names = next((metadata[key] for key in _NNX_KEYS if metadata.get(key)), None)
        return None if names is None else _renamed(getattr(names, "spec", names), rules, metadata.get("sharding_rules"))
    if not hasattr(box, "rules"):
        return _renamed(box.names, rules, None)
    rules = rules if box.rules is None else box.rules
    logical = [name for name in box.names if isinstance(name, str)]
    if logical and not rules:
        raise ValueError(
            f"{_WHO}: {leaf} has the logical axes {listed([*map(repr, logical)])}, and there are no rules for them. "
            f"Give rules=, pairs of such an axis and an axis of the mesh."
        )
    known = {name for name, _ in rules}
    unknown.update(dict.fromkeys(name for name in logical if name not in known))
    return spmd.logical_to_mesh_axes(box.names, rules)


# The second and third are from earlier versions.
_NNX_KEYS = ("out_sharding", "sharding_names", "sharding")


def _renamed(names: Any, rules: Any, own: Any) -> jax.P:
    """Translates names to a spec; names without a rule are axes of the mesh."""
    meant = {**dict(rules), **dict(own or ())}
    return jax.P(*(meant.get(name, name) for name in names))
