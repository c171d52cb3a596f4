"""A train step as an operation can call it: from values to values and metrics."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax

from hookline import notebooks
from hookline.graph import spec as specs
from hookline.loop import accumulators, metrics
from hookline.loop.call import Call, called
from hookline.loop.forms import NnxObjects, Tree
from hookline.loop.kinds import Unfit

# What JAX raises for Python that asks a traced value what it is.
_READS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_LIBRARIES = ("hookline", "jax", "jaxlib", "flax", "equinox", "optax", "numpy", "functools", "contextlib")


class Step:
    """A function of a state and a batch, and of a random key if it requires one, as an operation can call it.

    Args:
        who: Whose it is, for messages.
        function: The function.
        form: How the state is held, and which parameters get it.
        reset_steps: After how many steps what accumulates in the state begins anew; None for never.

    Attributes:
        left_out: The metrics of the last trace that are none, with the reasons.

    Raises:
        TypeError: It is no function, or requires arguments by name.
    """

    def __init__(self, who: str, function: Any, form: Tree | NnxObjects, reset_steps: int | None = None) -> None:
        self.name = self.__name__ = called(function)
        self._who, self._form = who, form
        self._call = Call(who, function, list(form.parts))
        self._reset_steps = reset_steps if form.accumulates else None
        self.left_out: dict[str, str] = {}

    @property
    def takes_key(self) -> bool:
        """Whether one of its parameters gets a random key. The spec of a batch tells."""
        return self._call.key is not None

    @property
    def told(self) -> str:
        """How it is called, in words, where something is spread by its place."""
        by_place = isinstance(self._form, Tree) and any(isinstance(key, int) for key in self._form.parts.values())
        return str(self._call) if by_place or not self._call.is_plain else ""

    @property
    def takes_step(self) -> bool:
        """Whether it is given the global step before it."""
        return self._reset_steps is not None

    def more(self) -> list[Any]:
        """Returns the specs of its arguments after the state and the batch."""
        step = [jax.ShapeDtypeStruct((), "int32")] if self.takes_step else []
        return step + ([jax.eval_shape(lambda: jax.random.key(0))] if self.takes_key else [])

    def __call__(self, values: Any, batch: Any, *more: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the values after the step, and its metrics by name. More are the global step and a random key."""
        whole = self._form.whole(values)
        if self._reset_steps is not None:
            step, *more = more  # type: ignore[assignment]
            with says(self._who, self.name):
                # After steps 1, 101, 201: that is where hooks fire that do so each 100 steps.
                whole = accumulators.begun_anew(whole, step % self._reset_steps == 1 % self._reset_steps)
        returned = self._call(self._form.split(whole), batch, *more)
        with says(self._who, self.name):
            after, told = self._form.results(whole, returned)
            accumulated: list[accumulators.Accumulator] = []
            if self._form.accumulates:  # A metric alone is called as its parameter.
                parts = zip(self._form.parts, self._form.arguments(after), strict=True)
                accumulated = accumulators.found_in(dict(parts))
            found, self.left_out = metrics.flat(told, accumulated)
            return after, found

    def spec(self, batch: Any, placed: Callable[[Any], Any] = lambda spec: spec) -> tuple[Any, dict[str, Any]]:
        """Returns the specs of what it returns for a batch of this spec, without running it.

        The form learns on the way which numbers of Python the step changes. `placed` adds where the state lives.

        Raises:
            TypeError: It reads values, or returns something that it must not.
            ValueError: It returns a state that is not like the one that it was given.
            Exception: What it raises itself.
        """
        self._call.settle(batch)
        while True:
            try:
                values = placed(specs.of_value(self._form.values))
                found = traced(self._who, self.name, self, values, batch, *self.more())
            except Exception as error:
                error.add_note(f"hookline: {self._call}")
                raise
            with says(self._who, self.name):
                if not self._form.learn():
                    return found


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
