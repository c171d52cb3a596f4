"""Front ends: the classes and results that users of a graph get; and the user's line that made a node."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any, Self

from hookline.signals import notebooks


class FrontEnd:
    """The extension points of another front end; this default changes nothing.

    Another front end subclasses this class, and sets an instance as `front_end` of its subclass of `Graph`. All graphs
    of that class share the instance, so it holds no data of a graph. Override methods in the class: whether they are
    overridden is looked up there, not in the instance.

    Attributes:
        hidden_modules: Modules and packages of the front end. Their lines do not count as the user's line that made an
            operation.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import FrontEnd
        >>> class Floats(FrontEnd):
        ...     def convert_results(self, values):
        ...         return [float(value) for value in values]
        >>> class FloatGraph(hl.Graph):
        ...     front_end = Floats()
        >>> with FloatGraph().as_default(), hl.Session() as sess:
        ...     sess.run(hl.constant(1.5))
        1.5
    """

    hidden_modules: tuple[str, ...] = ()

    def class_for(self, kind: type) -> type:
        """Returns the class to construct for an operation, tensor, variable or session of class `kind`.

        It is `kind` or a subclass of it. For a class that this method has returned, it is that class.
        """
        return kind

    def convert_results(self, values: list[Any]) -> list[Any]:
        """Converts the values of the fetches of a run, except those of deferred hooks."""
        return values

    def check_run(self, graph: Any) -> None:
        """Called after each run of the graph; may raise an error found in it."""

    def is_static(self, op: Any, computed: Collection[Any]) -> bool:
        """Returns whether the value fed for an operation is static: each new value compiles the program again.

        Args:
            op: The operation.
            computed: The operations of the program that takes the value.
        """
        return False


class FrontEndObject:
    """An object whose class the graph's front end may replace by a subclass."""

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
    """Returns the line of the nearest caller outside of this package, for messages about the operation made there.

    Args:
        skipped_modules: Further modules and packages to skip.
    """
    hidden = tuple(f"{name}." for name in (__name__.partition(".")[0], *skipped_modules))
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(hidden):
        frame = frame.f_back
    return notebooks.describe_location(frame.f_code.co_filename, frame.f_lineno)
