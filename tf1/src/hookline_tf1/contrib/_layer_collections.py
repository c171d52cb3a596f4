"""`slim.utils`: collections of layers' outputs and variables, and `smart_cond`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hookline import Tensor
from hookline_tf1._machinery.graphs import get_collection, get_default_graph
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._rules.constant_folding import constant_value
from hookline_tf1._tf import cond

__all__ = [
    "collect_named_outputs",
    "constant_value",
    "convert_collection_to_dict",
    "get_tensor_alias",
    "get_tensor_aliases",
    "last_dimension",
    "smart_cond",
]

__getattr__, __dir__ = offered("tf.contrib.slim.utils", lambda: __all__)


def _listed(keys: Any) -> list[Any]:
    return [keys] if isinstance(keys, str) else list(keys or ())


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Adds a layer's outputs to collections under a name, and returns them."""
    if collections:
        outputs.aliases = [*getattr(outputs, "aliases", ()), alias.removesuffix("/")]
    for key in _listed(collections):
        get_default_graph().add_to_collection(key, outputs)
    return outputs


def collect_variables(variables: Iterable[Any], variables_collections: Any) -> None:
    """Adds a layer's variables to collections: one list for all, or a dict of lists by variable name."""
    for variable in variables:
        last = variable.op.name.rpartition("/")[2]
        keys = variables_collections.get(last) if isinstance(variables_collections, dict) else variables_collections
        for key in _listed(keys):
            kept = get_default_graph().get_collection_ref(key)
            if variable not in kept:
                kept.append(variable)


def get_tensor_aliases(tensor: Any) -> list[str]:
    """Returns the aliases of an output, or else the name of its operation."""
    return list(getattr(tensor, "aliases", ())) or [tensor.op.name]


def get_tensor_alias(tensor: Any) -> str:
    """Returns the aliases of an output, joined by commas."""
    return ",".join(get_tensor_aliases(tensor))


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> dict[str, Any]:
    """Returns the outputs in a collection by their aliases."""
    pairs = [(alias, tensor) for tensor in get_collection(collection) for alias in get_tensor_aliases(tensor)]
    found = dict(pairs)
    if clear_collection:
        get_default_graph().clear_collection(collection)
    return found


def smart_cond(
    pred: Any, fn1: Callable[[], Any] | None = None, fn2: Callable[[], Any] | None = None, name: str | None = None
) -> Any:
    """Calls one of two functions if the condition is a constant, else `tf.cond`."""
    known = constant_value(pred) if isinstance(pred, Tensor) else pred
    if known is None:
        return cond.cond(pred, fn1, fn2, name=name or "cond")
    chosen = fn1 if known else fn2
    if not callable(chosen):
        raise TypeError(f"smart_cond requires two functions, got {chosen!r}.")
    return chosen()


def last_dimension(shape: Any, min_rank: int = 1) -> int:
    """Returns the last dimension of a shape.

    Raises:
        ValueError: The dimension is unknown, or the rank is less than `min_rank`.
    """
    if shape.ndims is None or shape.ndims < min_rank or shape.as_list()[-1] is None:
        raise ValueError(f"last_dimension requires a known dimension and a rank of at least {min_rank}, got {shape}.")
    return shape.as_list()[-1]
