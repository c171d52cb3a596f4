"""`tf.contrib.framework`: default arguments by scope, nested structures, the global step, warm starts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax

from hookline.checkpoint import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    init_from_checkpoint,
    list_variables,
    load_variable,
)
from hookline.compat.v1.graphs import GraphKeys, get_collection
from hookline.compat.v1.namespace import offered
from hookline.graph import Tensor, create_global_step, get_global_step, get_or_create_global_step

__all__ = [
    "add_arg_scope",
    "arg_scope",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "create_global_step",
    "get_global_step",
    "get_model_variables",
    "get_or_create_global_step",
    "get_trainable_variables",
    "get_variables",
    "get_variables_to_restore",
    "init_from_checkpoint",
    "list_variables",
    "load_variable",
    "nest",
]

__getattr__, __dir__ = offered("tf.contrib.framework", lambda: __all__)

_defaults: list[dict[str, dict[str, Any]]] = [{}]


def add_arg_scope(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Lets `arg_scope` set default arguments of a function."""
    key = f"{fn.__module__}.{fn.__qualname__}"

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **_defaults[-1].get(key, {}) | kwargs)

    call._arg_scope_key = key  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[dict[str, dict[str, Any]]]:
    """Sets default arguments of functions inside the block.

    Args:
        list_ops_or_scope: Functions, or what an earlier `arg_scope` gave, which then holds again.
        **kwargs: The arguments.

    Raises:
        ValueError: A function was not made with `add_arg_scope`; or arguments stand beside an earlier scope.
    """
    if isinstance(list_ops_or_scope, dict):
        if kwargs:
            raise ValueError("arg_scope takes no further arguments beside a scope that it gave earlier.")
        inner = list_ops_or_scope
    else:
        inner = dict(_defaults[-1])
        for fn in list_ops_or_scope if isinstance(list_ops_or_scope, list | tuple) else [list_ops_or_scope]:
            if not hasattr(fn, "_arg_scope_key"):
                raise ValueError(f"arg_scope requires functions made with add_arg_scope, got {fn!r}.")
            inner[fn._arg_scope_key] = inner.get(fn._arg_scope_key, {}) | kwargs
    _defaults.append(inner)
    try:
        yield inner
    finally:
        _defaults.pop()


def get_variables(scope: Any = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES) -> Any:
    """Returns the variables of a collection whose names begin with `scope` and end in `suffix`."""
    scope = getattr(scope, "name", scope)
    found = get_collection(collection, scope)
    return found if suffix is None else [variable for variable in found if variable.op.name.endswith(suffix)]


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> Any:
    """Returns the variables that are trained, of a scope."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> Any:
    """Returns the variables of the model, of a scope."""
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_variables_to_restore(include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> Any:
    """Returns the variables of some scopes without those of others."""
    wanted = get_variables() if include is None else [item for scope in include for item in get_variables(scope)]
    left = {variable for scope in exclude or () for variable in get_variables(scope)}
    return [variable for variable in wanted if variable not in left]


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Tensor)


nest = SimpleNamespace(
    flatten=lambda structure: jax.tree.leaves(structure, is_leaf=_is_leaf),
    map_structure=lambda fn, *structures: jax.tree.map(fn, *structures, is_leaf=_is_leaf),
    pack_sequence_as=lambda structure, flat: jax.tree.unflatten(jax.tree.structure(structure, is_leaf=_is_leaf), flat),
    is_sequence=lambda value: isinstance(value, list | tuple | dict),
    assert_same_structure=lambda one, other: jax.tree.map(lambda *_: None, one, other, is_leaf=_is_leaf),
)
