"""Dialects: changes to the behaviour that users of a graph see, for example for scripts of TF 1.x."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self


class Dialect:
    """The behaviour of a graph towards its users; this one is the core's own, and changes nothing.

    A graph has it as `dialect`; a layer above subclasses `Graph` and names another. All graphs of a class share one
    dialect, so it holds no data of a graph.
    """

    def class_for(self, kind: type) -> type:
        """Returns the class to construct when an operation, tensor, variable or session of class `kind` is made.

        It is a subclass of `kind` with further methods; for such a subclass it is the class itself.
        """
        return kind

    def returned(self, values: list[Any]) -> list[Any]:
        """Converts the values of the fetches for the caller of a run."""
        return values

    def check_run(self, graph: Any) -> None:
        """Called when a run of the graph has been made; may raise an error found in it."""

    def is_compiled_in(self, op: Any, computed: Collection[Any]) -> bool:
        """Returns whether XLA must know a value fed for an operation: each new value is then compiled anew.

        Args:
            op: The operation.
            computed: The operations of the program that takes the value.
        """
        return False

    def spares_remote(self, guard: Any) -> bool:
        """Returns whether a run with this guard may update parameter servers, which the guard cannot hold back."""
        return False


class InDialect:
    """An object that is made in the dialect of a graph, and so perhaps of a subclass."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102
        return super().__new__(cls._made_for(*args, **kwargs).dialect.class_for(cls))

    @classmethod
    def _made_for(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the graph for which an object with these arguments is made."""
        raise NotImplementedError
