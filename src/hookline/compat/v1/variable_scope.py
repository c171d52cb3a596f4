"""`variable_scope` and `get_variable`: variables by name, made once and shared where a scope says so."""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from hookline.compat.v1 import dtypes, initializers
from hookline.compat.v1.graphs import Graph, GraphKeys, get_collection, get_default_graph, name_scope
from hookline.compat.v1.shapes import TensorShape
from hookline.compat.v1.variables import Variable
from hookline.graph import Tensor as CoreTensor


class _Reuse(enum.Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE


class VariableScope:
    """What `get_variable` takes from the scope around it.

    References:
        `tf.VariableScope`.
    """

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        regularizer: Any = None,
        custom_getter: Any = None,
        dtype: Any = dtypes.float32,
        constraint: Any = None,
        original_name_scope: str = "",
    ) -> None:
        self.reuse = reuse
        self.name = name
        self.initializer = initializer
        self.regularizer = regularizer
        self.custom_getter = custom_getter
        self.dtype = dtype
        self.constraint = constraint
        self.original_name_scope = original_name_scope

    def reuse_variables(self) -> None:
        """Makes `get_variable` give variables that exist, from here to the end of the scope."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Sets the initializer of variables that bring none."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Sets the regularizer of variables that bring none."""
        self.regularizer = regularizer

    def set_dtype(self, dtype: Any) -> None:
        """Sets the dtype of variables that bring none."""
        self.dtype = dtype

    def set_custom_getter(self, custom_getter: Any) -> None:
        """Sets the function that makes variables."""
        self.custom_getter = custom_getter

    def get_collection(self, name: Any) -> list[Any]:
        """Returns what of a collection lies in the scope."""
        return get_collection(name, f"{self.name}/" if self.name else None)

    def global_variables(self) -> list[Any]:
        """Returns its variables."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def trainable_variables(self) -> list[Any]:
        """Returns its variables that are trained."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def local_variables(self) -> list[Any]:
        """Returns its local variables."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def with_(self, **changes: Any) -> VariableScope:
        """Returns a copy of it in which some things are otherwise."""
        names = [name for name in inspect.signature(VariableScope).parameters]
        return VariableScope(**{name: getattr(self, name) for name in names} | changes)


class _Store:
    """The variables of a graph by name, and how often each scope was opened."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.local = threading.local()

    @property
    def scope(self) -> VariableScope:
        """The scope of the calling thread."""
        if not hasattr(self.local, "scope"):
            self.local.scope = VariableScope(False)
        return self.local.scope

    def unique(self, prefix: str) -> str:
        """Returns a name that no scope inside the current one has."""
        outer = f"{self.scope.name}/" if self.scope.name else ""
        name, number = prefix, 0
        while self.counts.get(outer + name):
            number += 1
            name = f"{prefix}_{number}"
        return name

    @contextlib.contextmanager
    def inside(self, scope: VariableScope) -> Iterator[VariableScope]:
        """Makes `scope` the current one; scopes inside it are counted anew the next time."""
        outer = self.scope
        self.counts[scope.name] = self.counts.get(scope.name, 0) + 1
        self.local.scope = scope
        try:
            yield scope
        finally:
            for name in self.counts:
                if name.startswith(f"{scope.name}/"):
                    self.counts[name] = 0
            self.local.scope = outer


_STORES: weakref.WeakKeyDictionary[Graph, _Store] = weakref.WeakKeyDictionary()


def _store() -> _Store:
    graph = get_default_graph()
    if graph not in _STORES:
        _STORES[graph] = _Store()
    return _STORES[graph]


def get_variable_scope() -> VariableScope:
    """`tf.get_variable_scope`."""
    return _store().scope


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
    """Names and shares the variables that `get_variable` makes inside.

    References:
        `tf.variable_scope`. `caching_device`, `partitioner` and `use_resource` have no effect.
    """
    if name_or_scope is None and default_name is None:
        raise TypeError("If default_name is None then name_or_scope is required")
    if name_or_scope is None and reuse:
        raise ValueError("reuse=True cannot be used without a name_or_scope")
    if name_or_scope is not None and not isinstance(name_or_scope, str | VariableScope):
        raise TypeError("VariableScope: name_or_scope must be a string or VariableScope.")
    store = _store()
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
    """`variable_scope`, with the arguments that it had before TF 1.0."""
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
    """Returns the variable of that name in the current scope: a new one, or one that is shared.

    References:
        `tf.get_variable`. `caching_device`, `partitioner`, `use_resource` and what follows have no effect.
    """
    scope = _store().scope
    if initializer is None:
        initializer = scope.initializer
    if regularizer is None:
        regularizer = scope.regularizer
    getter = scope.custom_getter if custom_getter is None else _both(scope.custom_getter, custom_getter)
    make: Callable[..., Any] = _made if getter is None else functools.partial(getter, _made)
    return make(
        name=f"{scope.name}/{name}" if scope.name else name,
        shape=shape,
        dtype=dtypes.as_dtype(dtype or _dtype_of(initializer) or scope.dtype),
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


def _dtype_of(initializer: Any) -> Any:
    return getattr(initializer, "dtype", None) if _is_value(initializer) else None


def _is_value(initializer: Any) -> bool:
    return initializer is not None and (isinstance(initializer, CoreTensor) or not callable(initializer))


def _made(
    name: str,
    shape: Any = None,
    dtype: Any = dtypes.float32,
    initializer: Any = None,
    regularizer: Any = None,
    reuse: Any = None,
    trainable: Any = None,
    collections: Any = None,
    constraint: Any = None,
    **ignored: Any,
) -> Any:
    store, dtype = _store(), dtypes.as_dtype(dtype)
    found = store.variables.get(name)
    if found is not None:
        if reuse is False or reuse is None:
            raise ValueError(
                f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE in "
                f"VarScope? Originally defined at {found.op.location}"
            )
        _check_shared(name, found, shape, dtype)
        return found
    if reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            f"reuse=tf.AUTO_REUSE in VarScope?"
        )
    graph = get_default_graph()
    with graph.control_dependencies(None), graph.name_scope(None):
        initial = _initial_value(name, shape, dtype, initializer)
        made = Variable(initial, trainable, collections, name=name, dtype=dtype, constraint=constraint)
    store.variables[name] = made
    if regularizer is not None:
        with name_scope(f"{name}/Regularizer/"):
            loss = regularizer(made)
        if loss is not None:
            graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return made


def _check_shared(name: str, found: Any, shape: Any, dtype: Any) -> None:
    if shape is not None and not TensorShape(shape).is_compatible_with(found.shape):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {TensorShape(shape)} and found shape {found.shape}."
        )
    if dtypes.canonical(dtype) != dtypes.canonical(found.dtype):
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {dtype.name} and found dtype {found.dtype.name}."
        )


def _initial_value(name: str, shape: Any, dtype: Any, initializer: Any) -> Any:
    if isinstance(initializer, str):
        initializer = initializers.made(initializer)
    if _is_value(initializer):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return initializer
    if initializer is None:
        initializer = initializers.glorot_uniform if dtype.is_floating else initializers.Zeros
    shape = TensorShape(shape)
    if not shape.is_fully_defined() and not (shape == TensorShape(None) and inspect.isfunction(initializer)):
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}.")
    with get_default_graph().name_scope(f"{name}/Initializer/"):
        if not shape.is_known:
            return initializer()
        return initializers.made(initializer)(shape.as_list(), dtype=dtype)


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """`tf.get_local_variable`: neither trained nor saved."""
    collections = [*(kwargs.pop("collections", None) or ()), GraphKeys.LOCAL_VARIABLES]
    kwargs.pop("trainable", None)
    return get_variable(name, *args, trainable=False, collections=list(dict.fromkeys(collections)), **kwargs)


def no_regularizer(_: Any) -> None:
    """`tf.no_regularizer`: no loss for the variable."""


__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "no_regularizer",
    "variable_op_scope",
    "variable_scope",
]
