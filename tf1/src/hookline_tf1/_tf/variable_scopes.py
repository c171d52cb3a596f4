"""`variable_scope` and `get_variable`: variables by name, created once and shared in scopes with reuse."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import GraphKeys, get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._tf.variable_creation import dtype_of, make_variable
from hookline_tf1._tf.variable_store import AUTO_REUSE, VariableScope, store_of_graph


def get_variable_scope() -> VariableScope:
    """`tf.get_variable_scope`."""
    return store_of_graph().scope


@contextlib.contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    values: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    reuse: Any = None,
    dtype: Any = None,
    use_resource: Any = None,
    constraint: Any = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Prefixes and shares the variables that `get_variable` creates inside the block.

    References:
        `tf.variable_scope`. `caching_device`, `partitioner` and `use_resource` have no effect.
    """
    ignored("tf.variable_scope", caching_device=caching_device, partitioner=partitioner, use_resource=use_resource)
    if name_or_scope is None and default_name is None:
        raise TypeError("If default_name is None then name_or_scope is required")
    if name_or_scope is None and reuse:
        raise ValueError("reuse=True cannot be used without a name_or_scope")
    if name_or_scope is not None and not isinstance(name_or_scope, str | VariableScope):
        raise TypeError("VariableScope: name_or_scope must be a string or VariableScope.")
    store = store_of_graph()
    outer = store.scope
    if isinstance(name_or_scope, VariableScope):
        operations = name_or_scope.name.rpartition("/")[2]
        inner = name_or_scope.with_(reuse=name_or_scope.reuse if reuse is None else reuse)
    else:
        operations = default_name if name_or_scope is None else name_or_scope
        name = store.unique(default_name or "") if name_or_scope is None else name_or_scope
        name = f"{outer.name}/{name}" if outer.name and name else name or outer.name
        # Reuse is inherited.
        inner = outer.with_(name=name, reuse=reuse or outer.reuse)
    given = {"initializer": initializer, "regularizer": regularizer, "dtype": dtype, "constraint": constraint}
    inner = inner.with_(**{key: value for key, value in given.items() if value is not None})
    if custom_getter is not None:
        inner.custom_getter = _both(inner.custom_getter, custom_getter)
    with contextlib.ExitStack() as entered:
        if operations and auxiliary_name_scope:
            scope = entered.enter_context(get_default_graph().name_scope(operations))
            if not isinstance(name_or_scope, VariableScope):
                inner.original_name_scope = scope
        yield entered.enter_context(store.inside(inner))


def variable_op_scope(values: Any, name_or_scope: Any, default_name: str | None = None, **how: Any) -> Any:
    """`variable_scope` with its arguments from before TF 1.0."""
    return variable_scope(name_or_scope, default_name, values, **how)


def _both(outer: Any, inner: Any) -> Any:
    if outer is None:
        return inner
    return lambda getter, *args, **kwargs: inner(functools.partial(outer, getter), *args, **kwargs)


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: Any = None,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: Any = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """Returns the variable of that name in the current scope, new or shared.

    References:
        `tf.get_variable`. `caching_device`, `partitioner`, `use_resource` and the arguments after them have no effect.
    """
    scope = store_of_graph().scope
    value_dtype = dtype_of(initializer, dtype)
    if initializer is None:
        initializer = scope.initializer
        value_dtype = dtype_of(initializer)
    if regularizer is None:
        regularizer = scope.regularizer
    getter = scope.custom_getter if custom_getter is None else _both(scope.custom_getter, custom_getter)
    make: Callable[..., Any] = make_variable if getter is None else functools.partial(getter, make_variable)
    return make(
        name=f"{scope.name}/{name}" if scope.name else name,
        shape=shape,
        dtype=dtypes.as_dtype(dtype or value_dtype or scope.dtype),
        initializer=initializer,
        regularizer=regularizer,
        reuse=scope.reuse,
        trainable=trainable,
        collections=collections,
        constraint=scope.constraint if constraint is None else constraint,
        use_resource=use_resource,
        validate_shape=validate_shape,
        caching_device=caching_device,
        partitioner=partitioner,
        synchronization=synchronization,
        aggregation=aggregation,
    )


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """`tf.get_local_variable`: neither trained nor saved."""
    collections = [*(kwargs.pop("collections", None) or ()), GraphKeys.LOCAL_VARIABLES]
    kwargs.pop("trainable", None)
    return get_variable(name, *args, trainable=False, collections=list(dict.fromkeys(collections)), **kwargs)


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Wraps a function to create its variables in the first call and share them in later calls.

    References:
        `tf.make_template`.
    """

    def new_scope() -> Any:
        return variable_scope(unique_name_, name_, custom_getter=custom_getter_)

    found: list[VariableScope] = []
    if create_scope_now_:
        with new_scope() as made:
            found.append(made)
    calls = 0

    def call(*args: Any, **more: Any) -> Any:
        nonlocal calls
        with variable_scope(found[0], reuse=calls > 0 or None) if found else new_scope() as scope:
            made = func_(*args, **kwargs | more)
            calls, found[:] = calls + 1, [*found, scope][:1]
            return made

    return call


def no_regularizer(_: Any) -> None:
    """`tf.no_regularizer`: no loss for the variable."""


__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "make_template",
    "no_regularizer",
    "variable_op_scope",
    "variable_scope",
]
