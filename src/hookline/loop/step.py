"""A train step as an operation can call it: from values to values and metrics."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax

from hookline import notebooks
from hookline.graph import spec as specs
from hookline.loop import metrics
from hookline.loop.forms import NnxObjects, Tree, Unfit

# What JAX raises for Python that asks a traced value what it is.
_READS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_LIBRARIES = ("hookline", "jax", "jaxlib", "flax", "equinox", "optax", "numpy", "functools", "contextlib")


class Step:
    """A function of a state and a batch, and of a key if it requires one positional parameter more.

    Raises:
        TypeError: It is no function, or requires other parameters.
    """

    def __init__(self, who: str, function: Any, form: Tree | NnxObjects) -> None:
        self.name = self.__name__ = called(function)
        self._who, self._function, self._form = who, function, form
        names = required(who, function)
        extra = 0 if names is None else len(names) - form.count - 1
        if extra not in (0, 1):
            raise TypeError(
                f"{who}: {self.name} is called with the state ({form!r}), a batch, and a random key if it requires one "
                f"more; it requires {', '.join(names or ()) or 'nothing'}. A batch is one argument: `x, y = batch`."
            )
        self.takes_key = extra == 1
        self._key_name = names[-1] if names and self.takes_key else ""

    def __call__(self, values: Any, batch: Any, *key: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the values after the step, and its metrics by name."""
        arguments = self._form.arguments(values)
        returned = self._function(*arguments, batch, *key)
        with says(self._who, self.name):
            after, told = self._form.results(arguments, returned)
            return after, metrics.flat(told)

    def spec(self, batch: Any, placed: Callable[[Any], Any] = lambda spec: spec) -> tuple[Any, dict[str, Any]]:
        """Returns the specs of what it returns for a batch of this spec, without running it.

        The form learns on the way which numbers of Python the step changes. `placed` adds where the state lives.

        Raises:
            TypeError: It reads values, or returns something that it must not.
            ValueError: It returns a state that is not like the one that it was given.
            Exception: What it raises itself.
        """
        key = [jax.eval_shape(lambda: jax.random.key(0))] if self.takes_key else []
        while True:
            try:
                values = placed(specs.of_value(self._form.values))
                found = traced(self._who, self.name, self, values, batch, *key)
            except Exception as error:
                if self.takes_key:
                    error.add_note(f"hookline: the parameter {self._key_name!r} of {self.name} is given a random key")
                raise
            with says(self._who, self.name):
                if not self._form.learn():
                    return found


def required(who: str, function: Any) -> list[str] | None:
    """Returns the names of the positional parameters that a function requires; `None` where that is not known.

    Raises:
        TypeError: It is no function, or requires arguments by name.
    """
    if not callable(function):
        raise TypeError(f"{who} requires a function, got {function!r}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    found = [parameter for parameter in parameters if parameter.default is parameter.empty]
    by_name = [parameter.name for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]
    if by_name:
        raise TypeError(
            f"{who}: {called(function)} requires {', '.join(by_name)} by name, which nobody gives it. Give it "
            f"yourself: functools.partial({called(function)}, {by_name[0]}=...)."
        )
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in found):
        return None
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def called(function: Any) -> str:
    """Returns what to call a function in a message."""
    inner = getattr(function, "func", function)  # of functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


@contextlib.contextmanager
def says(who: str, name: str) -> Iterator[None]:
    """Has `Unfit` errors of a block raised with the name of whoever is at fault."""
    try:
        yield
    except Unfit as error:
        raise error.kind(f"{who}: {name}: {error}.") from None


def traced(who: str, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Returns the spec of what a function returns, and says where it reads a value that is not there yet.

    Raises:
        TypeError: It does.
        Exception: What it raises itself.
    """
    try:
        return jax.eval_shape(function, *given)
    except _READS as error:
        raise TypeError(
            f"{who}: {name} reads a value{_where(error)}, but it is compiled, and values are there only when it runs. "
            f"Return the value as a metric to see it; decide with jnp.where or jax.lax.cond; print with "
            f"jax.debug.print."
        ) from error
    except Exception as error:
        error.add_note(f"hookline: while {who} traced {name}")
        raise


def _where(error: BaseException) -> str:
    """Returns in which line of the user's a value was read; nothing where that cannot be told."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            text = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name).line
            return f" at {notebooks.place(frame.f_code.co_filename, line)}" + (f" (`{text}`)" if text else "")
    return ""
