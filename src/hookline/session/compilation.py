"""The log of a program's compilations: why each happened, how long it took, and a warning when there are too many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from hookline import clock, log
from hookline.session.compiled_in import CompiledIn

logger = log.of(__name__)

_MANY = 16

Named = Iterable[tuple[str, Any]]


class Compilations:
    """Logs the compilations of one program as they happen.

    Args:
        what: The program in words.
        warned: The warnings that the session's programs have logged; more are added here.

    Attributes:
        first_cause: Says why the first compilation is needed; called when it begins.
        traces: The number of times that the program was traced; each trace is a compilation, or finds an equal program.
        about: A description of the program.
        untold: Whether the duration of the last compilation is still to be logged.
    """

    def __init__(self, what: str, warned: set[str]) -> None:
        self.first_cause: Callable[[], str] = lambda: "first run"
        self._cause = ""
        self._warned = warned
        self.traces = 0
        self.untold = False
        self.about = what
        self._count = 0
        self._is_held = False
        self._forms: dict[str, list[str]] = {}
        self._began = 0.0

    def begins(self, arguments: Named, why: str = "") -> None:
        """Notes that JAX has begun to trace the program for these arguments, and why."""
        forms = {name: _forms(value) for name, value in arguments}
        before, self._forms = self._forms, forms
        self.traces += 1
        self._began, self.untold = clock.monotonic(), True
        self._cause = why or (self.first_cause() if self.traces == 1 else _difference(before, forms))
        if not self._is_held:
            self.tell()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Logs nothing of the traces of a block: `tell` does so once it is known whether they are compiled."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def tell(self, *, is_needed: bool = True) -> None:
        """Logs that the program is compiled for the latest arguments; or that an equal one is compiled already."""
        if not is_needed:
            self.untold = False
            logger.info("Using a program that is compiled already: %s.", self.about)
            return
        self._count += 1
        logger.info("Compiling a program (%s): %s.", self._cause, self.about)
        if self._count == _MANY:
            logger.warning(
                "A program was compiled %d times, the last time because %s. Each new shape is compiled anew, and each "
                "new number that sizes depend on: pad batches to one shape, or to few. It computes %s.",
                _MANY,
                self._cause,
                self.about,
            )

    def end(self) -> None:
        """Logs the duration of the last compilation; called when the program has started."""
        self.untold = False
        logger.info("Compiled it in %.2f s.", clock.monotonic() - self._began)

    def warn(self, text: str) -> None:
        """Logs a warning, once for all programs of the session."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _forms(value: Any) -> list[str]:
    return [repr(value)] if isinstance(value, CompiledIn) else [_form(leaf) for leaf in jax.tree.leaves(value)]


def _form(leaf: Any) -> str:
    aval = jax.typeof(leaf)
    return f"{aval.str_short()}{' (weak)' if getattr(aval, 'weak_type', False) else ''}"


def _difference(before: dict[str, list[str]], now: dict[str, list[str]]) -> str:
    for name, forms in now.items():
        old = before.get(name, [])
        if len(old) != len(forms):
            return f"{name} has {len(forms)} arrays, it had {len(old)}"
        for one, other in zip(old, forms, strict=True):
            if one != other:
                return f"{name} is {other}, it was {one}"
    return "its arguments lie on other devices, or JAX was configured otherwise"
