"""`tf.contrib.framework`: default arguments by scope, nested structures, the global step, warm starts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import jax

from hookline import Tensor
from hookline.train import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    get_global_step,
    init_from_checkpoint,
    load_variable,
)
from hookline_tf1._machinery.graphs import GraphKeys, get_collection, get_default_graph
from hookline_tf1._machinery.ignored_arguments import unknown
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._tf.variable_scopes import get_variable
from hookline_tf1.train._in_default_graph import create_global_step, get_or_create_global_step
from hookline_tf1.train._saver import list_variables, load_checkpoint

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "add_arg_scope",
    "add_model_variable",
    "arg_scope",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "create_global_step",
    "get_global_step",
    "get_model_variables",
    "get_or_create_global_step",
    "get_trainable_variables",
    "get_variables",
    "get_variables_by_name",
    "get_variables_by_suffix",
    "get_variables_to_restore",
    "has_arg_scope",
    "init_from_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "model_variable",
    "nest",
    "variable",
]

__getattr__, __dir__ = offered("tf.contrib.framework", lambda: __all__)

_PLACING = ("caching_device", "device", "partitioner", "use_resource", "synchronization", "aggregation")
_defaults: list[dict[str, dict[str, Any]]] = [{}]


def add_arg_scope(fn: Function) -> Function:
    """Lets `arg_scope` set default arguments of a function."""
    key = f"{fn.__module__}.{fn.__qualname__}"

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **_defaults[-1].get(key, {}) | kwargs)

    call._arg_scope_key = key  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def has_arg_scope(func: Callable[..., Any]) -> bool:
    """Whether `arg_scope` can set default arguments of a function."""
    return hasattr(func, "_arg_scope_key")


@contextlib.contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[dict[str, dict[str, Any]]]:
    """Sets default arguments of functions inside the block.

    Args:
        list_ops_or_scope: Functions, or the value of an earlier `arg_scope` to apply again.
        **kwargs: The arguments.

    Raises:
        ValueError: A function was not made with `add_arg_scope`; or arguments were given with an earlier scope.
    """
    if isinstance(list_ops_or_scope, dict):
        if kwargs:
            raise ValueError("arg_scope takes no further arguments with an earlier scope.")
        inner = list_ops_or_scope
    else:
        inner = dict(_defaults[-1])
        for fn in list_ops_or_scope if isinstance(list_ops_or_scope, list | tuple) else [list_ops_or_scope]:
            if not has_arg_scope(fn):
                raise ValueError(f"arg_scope requires functions made with add_arg_scope, got {fn!r}.")
            key = getattr(fn, "_arg_scope_key")  # noqa: B009
            inner[key] = inner.get(key, {}) | kwargs
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
    """Returns the trainable variables of a scope."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> Any:
    """Returns the model variables of a scope."""
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_variables_to_restore(include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> Any:
    """Returns the variables in some scopes, without the variables in others."""
    wanted = get_variables() if include is None else [item for scope in include for item in get_variables(scope)]
    left = {variable for scope in exclude or () for variable in get_variables(scope)}
    return [variable for variable in wanted if variable not in left]


def get_variables_by_name(given_name: str, scope: Any = None) -> Any:
    """Returns the variables of a scope whose last name part is `given_name`."""
    suffix = f"/{given_name}"
    return [v for v in get_variables(scope) if v.op.name == given_name or v.op.name.endswith(suffix)]


def get_variables_by_suffix(suffix: str, scope: Any = None) -> Any:
    """Returns the variables of a scope whose names end in `suffix`."""
    return get_variables(scope, suffix)


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    **further: Any,
) -> Any:
    """Returns the variable with a name, and adds it to collections: by default the global variables."""
    unknown("tf.contrib.framework.variable", further, *_PLACING)
    keys = list(dict.fromkeys(collections or [GraphKeys.GLOBAL_VARIABLES]))
    return get_variable(name, shape, dtype, initializer, regularizer, trainable, keys)


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    **further: Any,
) -> Any:
    """Returns the variable with a name, and adds it to the model variables."""
    made = variable(
        # By keyword, to override an `arg_scope`'s defaults for `variable`.
        name, shape=shape, dtype=dtype, initializer=initializer, regularizer=regularizer, trainable=trainable,
        collections=[*(collections or []), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES], **further,
    )  # fmt: skip
    add_model_variable(made)
    return made


def add_model_variable(var: Any) -> None:
    """Adds a variable to the model variables."""
    kept = get_default_graph().get_collection_ref(GraphKeys.MODEL_VARIABLES)
    if var not in kept:
        kept.append(var)


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Tensor)


nest = SimpleNamespace(
    flatten=lambda structure: jax.tree.leaves(structure, is_leaf=_is_leaf),
    map_structure=lambda fn, *structures: jax.tree.map(fn, *structures, is_leaf=_is_leaf),
    pack_sequence_as=lambda structure, flat: jax.tree.unflatten(jax.tree.structure(structure, is_leaf=_is_leaf), flat),
    is_sequence=lambda value: isinstance(value, list | tuple | dict),
    assert_same_structure=lambda one, other: jax.tree.map(lambda *_: None, one, other, is_leaf=_is_leaf),
)
