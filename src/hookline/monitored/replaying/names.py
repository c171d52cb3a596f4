"""Names of what a replay looks at: metrics, arrays of variables and batches, and their norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from hookline.graph import Tensor, Variable, op
from hookline.paths import flatten_with_paths

METRICS = "metrics"
"""The name of all metrics that are numbers."""

NORMS = "norms"
"""The name of all metrics, and of the norms of all arrays."""


class Tree(NamedTuple):
    """A variable or a batch, whose arrays have names.

    Args:
        prefix: The beginning of the names, followed by the path of the array in the tree.
        source: The variable, or the tensor of the batch.
        spec: Its spec.
        aliases: Other first parts of paths, by the first part.
    """

    prefix: str
    source: Variable | Tensor
    spec: Any
    aliases: Mapping[str, str] = {}


def tensors_by_name(
    who: str, names: Iterable[str], metrics: Mapping[str, Tensor], trees: Iterable[Tree], advice: str = ""
) -> dict[str, Tensor]:
    """Returns metrics and arrays by name.

    The name `NORMS` stands for the metrics and the norms of all arrays of numbers, in the order of the trees; the name
    `METRICS` for the metrics that are numbers.

    Args:
        who: The caller, for messages.
        names: The names.
        metrics: The metrics, by name.
        trees: The trees, batches first.
        advice: What to do with a name that is unknown, for the message.

    Raises:
        ValueError: There is none of that name; the message lists all.
    """
    leaves: dict[str, tuple[Variable | Tensor, int]] = {}
    own: dict[str, str] = {}
    for prefix, source, spec, aliases in trees:
        for index, (path, _) in enumerate(flatten_with_paths(spec)[0]):
            first, _, rest = path.partition("/")
            shown = "/".join(filter(None, (prefix, aliases.get(first, first), rest))) or source.op.name
            leaves.setdefault(shown, (source, index))
            for other in ("/".join(filter(None, (prefix, path))), "/".join(filter(None, (source.op.name, path)))):
                own.setdefault(other, shown)
    found: dict[str, Tensor] = {}
    for name in names:
        if name == NORMS and name not in (*metrics, *leaves):
            found |= {f"|{path}|": _norm(*leaf) for path, leaf in leaves.items() if _has_norm(*leaf)}
            found |= metrics
        elif name == METRICS and name not in (*metrics, *leaves):
            found |= {name: metric for name, metric in metrics.items() if getattr(metric.spec, "shape", None) == ()}
        elif name in metrics:
            found[name] = metrics[name]
        elif (path := own.get(name, name)) in leaves:
            found[name] = _leaf(*leaves[path])
        else:
            raise ValueError(
                f"{who}: there is no metric and no array called {name!r}. There are: {', '.join([*metrics, *leaves])}."
                f"{advice}"
            )
    return found


def _has_norm(source: Variable | Tensor, index: int) -> bool:
    leaf = flatten_with_paths(source.spec)[0][index][1]
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.inexact) and 0 not in leaf.shape


def _norm(source: Variable | Tensor, index: int) -> Tensor:
    """Returns the norm of an array of numbers, which is finite if and only if all numbers are."""

    def norm(value: Any) -> Any:
        leaf = jnp.abs(flatten_with_paths(value)[0][index][1])
        leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        largest = jnp.maximum(leaf.max(), jnp.finfo(leaf.dtype).tiny)  # Squares of large numbers are not finite.
        return largest * jnp.sqrt(((leaf / largest) ** 2).sum())

    return op(norm, name="look").node(source)


def _leaf(source: Variable | Tensor, index: int) -> Tensor:
    """Returns a tensor of one array of a variable or a batch."""
    return op(lambda value: flatten_with_paths(value)[0][index][1], name="look").node(source)
