"""Namespaces: modules that raise a migration hint for a missing name."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline_tf1._machinery.migration_hints import ANY, ELSE, NEAREST

# The least similarity of two names: below it, hints are guesses (tf.random_shuffle for tf.read_file).
_ALIKE = 0.8


def missing(namespace: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module or an object, which raises `AttributeError` with a migration hint.

    Python drops the message in a line `from tf.nn import x`; `_tf/module_aliases.py` raises it there.

    Args:
        namespace: Its name in scripts, such as `tf.nn`.
        names: Returns the existing names.
    """

    def __getattr__(name: str) -> Any:
        full = f"{namespace}.{name}"
        if name.startswith("__"):
            raise AttributeError(f"{namespace} has no attribute {name!r}")
        if full in NEAREST:
            advice = f"The nearest thing: {NEAREST[full]}."
        else:
            near = difflib.get_close_matches(name, list(names()), n=1, cutoff=_ALIKE)
            found = f"{namespace}.{near[0]}" if near else ELSE.get(namespace) or NEAREST.get(namespace, ANY)
            advice = f"The nearest thing: {found}."
        raise AttributeError(f"hookline_tf1 has no {full}. {advice} See its docs/coming-from-tf1.md.")

    return __getattr__


def offered(namespace: str, names: Callable[[], Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` of `missing` and a `__dir__`, for a module that is a namespace of TensorFlow's."""
    return missing(namespace, names), lambda: sorted(names())


def made_in(module: str, names: Mapping[str, Any]) -> list[str]:
    """Returns the public names of the functions and classes that a module defines."""
    return [name for name, value in names.items() if getattr(value, "__module__", "") == module and name[0] != "_"]


class Offers(type):
    """A metaclass whose classes raise a migration hint for a missing attribute.

    The attribute `called` of such a class is its name in scripts.
    """

    called: str

    def __getattr__(cls, name: str) -> Any:
        # Not `dir`, which would call __getattr__ again.
        return missing(cls.called, lambda: [known for kind in cls.__mro__ for known in vars(kind)])(name)


class Gathered(types.ModuleType):
    """A namespace with the names of several others; the first that has a name wins.

    Args:
        name: Its name in scripts.
        namespaces: The other namespaces.
    """

    def __init__(self, name: str, namespaces: Iterable[Any]) -> None:
        super().__init__(name, f"`{name}`.")
        self._namespaces = list(namespaces)
        self._missing = missing(name, lambda: dir(self))

    def __getattr__(self, name: str) -> Any:
        found = (each for each in self.__dict__["_namespaces"] if name in dir(each))
        first = next(found, None)
        return self.__dict__["_missing"](name) if first is None else getattr(first, name)

    def __dir__(self) -> list[str]:
        return sorted({name for each in self._namespaces for name in dir(each)})


class Namespace(types.ModuleType):
    """A namespace without a file, such as `tf.python.util.nest`.

    Args:
        name: Its name in scripts.
        names: Its names and their values.
    """

    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name, f"`{name}`.")
        self.__dict__.update(names)
        self.__all__ = sorted(names)
        self._missing = missing(name, lambda: self.__all__)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_missing"](name)

    def __dir__(self) -> list[str]:
        return self.__all__
