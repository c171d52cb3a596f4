"""Compilation: XLA's options on a CPU, and the log of each compilation's cause and duration."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline import clock, log
from hookline.coordination import progress
from hookline.graph.nodes import spec as specs
from hookline.graph.variable import Variable
from hookline.session.plan.feeds import StaticArray

logger = log.get_logger(__name__)

_MANY = 16


class CompilationLog:
    """Logs the compilations of one program as they happen.

    Args:
        what: A description of the program.
        warned: The warnings that the session's programs have logged; more are added here.

    Attributes:
        first_cause: Returns the cause of the first compilation; called when it begins.
        num_traces: The number of times that the program was traced; each trace is a compilation, or finds an equal
            program.
        description: The description of the program.
        has_unlogged_duration: Whether the duration of the last compilation is still to be logged.
    """

    def __init__(self, what: str, warned: set[str]) -> None:
        self.first_cause: Callable[[], str] = lambda: "first run"
        self._cause = ""
        self._warned = warned
        self.num_traces = 0
        self.has_unlogged_duration = False
        self.description = what
        self._count = 0
        self._is_logging_deferred = False
        self._signatures: dict[str, list[str]] = {}
        self._start_time = 0.0

    def record_trace(self, arguments: Iterable[tuple[str, Any]]) -> None:
        """Records that JAX begins to trace the program for these arguments, given with their names."""
        forms = {name: _signatures(value) for name, value in arguments}
        before, self._signatures = self._signatures, forms
        self.num_traces += 1
        progress.count += 1
        self._start_time, self.has_unlogged_duration = clock.monotonic(), True
        self._cause = self.first_cause() if self.num_traces == 1 else _explain_retrace(before, forms)
        if not self._is_logging_deferred:
            self.log_compilation()

    @contextlib.contextmanager
    def defer_logging(self) -> Iterator[None]:
        """Defers the log of traces: the caller calls `log_compilation` once it is known whether they are compiled."""
        self._is_logging_deferred = True
        try:
            yield
        finally:
            self._is_logging_deferred = False

    def log_compilation(self, *, is_needed: bool = True) -> None:
        """Logs that the program is compiled for the latest arguments; or that an equal one is compiled already."""
        if not is_needed:
            self.has_unlogged_duration = False
            logger.info("Using a program that is compiled already: %s.", self.description)
            return
        self._count += 1
        logger.info("Compiling a program (%s): %s.", self._cause, self.description)
        if self._count == _MANY:
            logger.warning(
                "A program was compiled %d times, the last time because %s. It is compiled again for each new shape, "
                "and for each new number that sizes depend on: pad batches to one shape, or to few. It computes %s.",
                _MANY,
                self._cause,
                self.description,
            )

    def log_duration(self) -> float:
        """Logs and returns the duration of the last compilation in seconds; called when the program has started."""
        self.has_unlogged_duration = False
        progress.count += 1
        secs = clock.monotonic() - self._start_time
        logger.info("Compiled it in %.2f s.", secs)
        return secs

    def warn_once(self, text: str) -> None:
        """Logs a warning, once for all programs of the session."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _signatures(value: Any) -> list[str]:
    if isinstance(value, StaticArray):
        return [repr(value)]
    types = map(jax.typeof, jax.tree.leaves(value))
    return [f"{aval.str_short()}{' (weak)' if getattr(aval, 'weak_type', False) else ''}" for aval in types]


def _explain_retrace(before: dict[str, list[str]], now: dict[str, list[str]]) -> str:
    for name, forms in now.items():
        old = before.get(name, [])
        if len(old) != len(forms):
            return f"{name} has {len(forms)} arrays, it had {len(old)}"
        for one, other in zip(old, forms, strict=True):
            if one != other:
                return f"{name} is {other}, it was {one}"
    return "its arguments are on other devices, or the configuration of JAX has changed"


_LARGE_BYTES = 32 * 2**20
_DISABLED = "xla_disable_hlo_passes"
_MEMORY_FIRST = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# XLA on CPU multiplies bfloat16 and float16 in float32. Merging equal expressions would keep the float32 copy of each
# weight alive from the forward pass until the backward pass reads it: two copies of the model.
_HALVES_APART = {**_MEMORY_FIRST, _DISABLED: "cse"}
# Loop-invariant work stays in each step, as in a single step: if it were moved out of the loop, XLA would fuse the rest
# differently, which changes the last bits of some models (of an attention over few positions, for example).
_NOTHING_MOVED_OUT = "while-loop-invariant-code-motion"


def compiler_options(variables: Sequence[Variable], *, in_loop: bool = False) -> dict[str, Any] | None:
    """Returns XLA's compiler options for a program; None for the defaults.

    On CPU, XLA's defaults keep intermediate copies of a large model alive: four of a bfloat16 model while it is
    initialised, two in a step. These options are no slower if every array is large. The order of the work changes no
    bits; not merging equal expressions of half precision may change the last bits.

    Args:
        variables: The variables that it writes, or that its caller reads.
        in_loop: Whether it makes several steps.
    """
    if jax.default_backend() != "cpu":
        return None
    leaves = [leaf for v in variables if v.spec is not specs.UNKNOWN for leaf in jax.tree.leaves(v.spec)]
    known = [leaf for leaf in leaves if all(isinstance(dim, int) for dim in leaf.shape)]
    options: dict[str, Any] = {}
    if _bytes(known) >= _LARGE_BYTES:
        halves = [leaf for leaf in known if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize == 2]
        options = _supported_options(_HALVES_APART if _bytes(halves) >= _LARGE_BYTES else _MEMORY_FIRST)
    if in_loop:
        disabled = ",".join(filter(None, [options.get(_DISABLED), _NOTHING_MOVED_OUT]))
        options = _supported_options(options | {_DISABLED: disabled}) or options
    return options or None


def _bytes(leaves: Sequence[Any]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _supported_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options; none if this XLA does not know one of them, because it would then refuse to compile."""
    return options if _is_supported(tuple(options.items())) else {}


@functools.cache
def _is_supported(options: tuple[tuple[str, Any], ...]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
