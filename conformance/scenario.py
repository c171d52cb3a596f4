"""What a scenario is: one behaviour, written once for both systems."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from conformance.system import System

Record = dict[str, Any]


class Scenario(NamedTuple):
    """One behaviour.

    Attributes:
        id: `group.subject.behaviour`; what docs/differences.md names.
        says: The behaviour in a sentence.
        play: Runs it on a system and returns what happened: named values that JSON can hold.
    """

    id: str
    says: str
    play: Callable[[System], Record]

    @property
    def group(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    @property
    def suite(self) -> str:
        """The package that it is of."""
        return self.play.__module__.partition(".scenarios.")[0]


_scenarios: dict[str, Scenario] = {}


def scenario(id: str) -> Callable[[Callable[[System], Record]], Callable[[System], Record]]:
    """Registers a function as the scenario of that id; its docstring is the behaviour."""

    def register(play: Callable[[System], Record]) -> Callable[[System], Record]:
        if id in _scenarios:
            raise ValueError(f"Two scenarios are called {id!r}.")
        if not play.__doc__:
            raise ValueError(f"Scenario {id!r} requires a docstring that says the behaviour.")
        _scenarios[id] = Scenario(id, play.__doc__.strip().partition("\n")[0], play)
        return play

    return register


def all_scenarios(suites: Iterable[str] = ("conformance",)) -> list[Scenario]:
    """Returns every scenario of suites, in the order of the files' names."""
    for suite in suites:
        package = importlib.import_module(f"{suite}.scenarios")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return [each for suite in suites for each in _scenarios.values() if each.suite == suite]
