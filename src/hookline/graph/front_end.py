"""Front ends: the classes, results and checks that users of a graph get, and the line of theirs that made a node."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any, Self

from hookline.signals import notebooks


class FrontEnd:
    """The behaviour of a graph towards its users; this one is the core's own, and changes nothing.

    A graph has it as `front_end`; another front end subclasses `Graph` and names its own. All graphs of a class share
    one, so it holds no data of a graph. Its methods are overridden in a class: they are looked up there.

    Attributes:
        hidden_modules: Modules and packages of the front end, whose lines are not those that made an operation.
    """

    hidden_modules: tuple[str, ...] = ()

    def class_for(self, kind: type) -> type:
        """Returns the class to construct when an operation, tensor, variable or session of class `kind` is made.

        It is `kind` or a subclass of it; for a class that it has returned, it is that class again.
        """
        return kind

    def convert_results(self, values: list[Any]) -> list[Any]:
        """Converts the values of the fetches of a run, except those of late hooks."""
        return values

    def check_run(self, graph: Any) -> None:
        """Called when a run of the graph has been made; may raise an error found in it."""

    def is_static(self, op: Any, computed: Collection[Any]) -> bool:
        """Returns whether XLA must know a value fed for an operation: each new value is then compiled anew.

        Args:
            op: The operation.
            computed: The operations of the program that takes the value.
        """
        return False


class FrontEndObject:
    """An object that the front end of a graph may make of a subclass."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102
        front_end = cls._graph_for(*args, **kwargs).front_end
        kind = front_end.class_for(cls)
        if not issubclass(kind, cls):  # Python would not call its `__init__`.
            raise TypeError(f"{type(front_end).__name__}.class_for must return a subclass of {cls!r}, got {kind!r}.")
        return super().__new__(kind)

    @classmethod
    def _graph_for(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the graph for which an object with these arguments is made."""
        raise NotImplementedError


def user_location(skipped_modules: tuple[str, ...] = ()) -> str:
    """Returns the line of the nearest caller, for messages about the operation made there.

    Args:
        skipped_modules: Modules and packages whose lines are passed over, as those of this package are.
    """
    hidden = tuple(f"{name}." for name in (__name__.partition(".")[0], *skipped_modules))
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(hidden):
        frame = frame.f_back
    return notebooks.describe_location(frame.f_code.co_filename, frame.f_lineno)
