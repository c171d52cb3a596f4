"""Dialects: what users of a graph see otherwise than in the core, such as scripts of TF 1.x."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self


class Dialect:
    """How a graph speaks to those who use it; this one is the core's own, and changes nothing.

    A graph has it as `dialect`; a subclass of `Graph` that names another is the way in for a layer above. All graphs of
    a class share one, so it keeps nothing of a graph.
    """

    def class_for(self, kind: type) -> type:
        """Returns the class of which an operation, tensor, variable or session is made, where `kind` is asked for.

        It is a subclass of `kind`, with further methods; of such a class it is that class itself.
        """
        return kind

    def returned(self, values: list[Any]) -> list[Any]:
        """Returns what a run gives its caller for the values of the fetches."""
        return values

    def check_run(self, graph: Any) -> None:
        """Is called when a run of the graph has been made, and may raise what that has found."""

    def is_compiled_in(self, op: Any, computed: Collection[Any]) -> bool:
        """Whether XLA has to know a value that is fed for an operation: with it each is compiled anew.

        Args:
            op: The operation.
            computed: The operations of the program that is given the value.
        """
        return False

    def spares_remote(self, guard: Any) -> bool:
        """Whether a run with this guard may update parameter servers, which the guard does not hold back."""
        return False


class InDialect:
    """Something that is made in the dialect of a graph, and so perhaps of another class than is asked for."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102
        return super().__new__(cls._made_for(*args, **kwargs).dialect.class_for(cls))

    @classmethod
    def _made_for(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the graph for which something with these arguments is made."""
        raise NotImplementedError
