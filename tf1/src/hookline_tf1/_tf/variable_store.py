"""Variable scopes, and the variables of a graph by name."""

from __future__ import annotations

import contextlib
import enum
import inspect
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import Graph, GraphKeys, get_collection, get_default_graph


class _Reuse(enum.Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE


class VariableScope:
    """A variable scope: the defaults of `get_variable` inside it.

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
        """Makes `get_variable` return existing variables, from here to the end of the scope."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Sets the default initializer of variables."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Sets the default regularizer of variables."""
        self.regularizer = regularizer

    def set_dtype(self, dtype: Any) -> None:
        """Sets the default dtype of variables."""
        self.dtype = dtype

    def set_custom_getter(self, custom_getter: Any) -> None:
        """Sets the custom getter, which creates variables."""
        self.custom_getter = custom_getter

    def get_collection(self, name: Any) -> list[Any]:
        """Returns the items of a collection in the scope."""
        return get_collection(name, f"{self.name}/" if self.name else None)

    def global_variables(self) -> list[Any]:
        """Returns the scope's global variables."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def trainable_variables(self) -> list[Any]:
        """Returns the scope's trainable variables."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def local_variables(self) -> list[Any]:
        """Returns the scope's local variables."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def with_(self, **changes: Any) -> VariableScope:
        """Returns a copy of the scope with some attributes replaced."""
        names = [name for name in inspect.signature(VariableScope).parameters]
        return VariableScope(**{name: getattr(self, name) for name in names} | changes)


class Store:
    """The variables of a graph by name, and the count of openings of each scope."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.local = threading.local()

    @property
    def scope(self) -> VariableScope:
        """The current scope of the calling thread."""
        if not hasattr(self.local, "scope"):
            self.local.scope = VariableScope(False)
        return self.local.scope

    def unique(self, prefix: str) -> str:
        """Returns a name that no scope inside the current one has yet."""
        outer = f"{self.scope.name}/" if self.scope.name else ""
        name, number = prefix, 0
        while self.counts.get(outer + name):
            number += 1
            name = f"{prefix}_{number}"
        return name

    @contextlib.contextmanager
    def inside(self, scope: VariableScope) -> Iterator[VariableScope]:
        """Makes `scope` the current one; the count of scopes inside it restarts the next time."""
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


_STORES: weakref.WeakKeyDictionary[Graph, Store] = weakref.WeakKeyDictionary()


def store_of_graph() -> Store:
    """Returns the variables of the default graph by name."""
    graph = get_default_graph()
    if graph not in _STORES:
        _STORES[graph] = Store()
    return _STORES[graph]
