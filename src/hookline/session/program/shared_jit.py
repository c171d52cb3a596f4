"""Compiled programs that a process shares: equal programs are compiled once, whatever sessions and graphs they are of.

Two programs are equal if XLA is given the same text, with the same options, for the same arguments: of the same types,
on the same devices, at the same places. Each program is traced anew, so a closure, a global or an object that has
changed since makes another text.
"""

from __future__ import annotations

import collections
import hashlib
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.core import Tracer

from hookline.jax_internals import kept_argument_indices
from hookline.session.program.compilation_log import CompilationLog

_MAX_CACHED = 64
_INPUTS_INDEX = 3
# Such a text refers to Python objects of the process, not by what they are.
_REFERENCES = ("callback", "CustomSPMDPartitioning", "stablehlo.send", "stablehlo.recv")
_MESHES = ("sdy.mesh", "mhlo.sharding")
# Settings of JAX: with these it calls a function again that is compiled; with that a text lacks its large constants.
_UNSHARED_SETTINGS = ("jax_debug_nans", "jax_debug_infs", "jax_disable_jit")
_CONSTANTS_APART = "jax_use_simplified_jaxpr_constants"
# XLA is given these beside the text.
_COMPILER_SETTINGS = ("jax_optimization_level", "jax_memory_fitting_level")
# What a program closes over is kept with it, and printed in its text.
_MOST_CONSTANT_BYTES = 2**20

_cache: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
_lock = threading.Lock()


class OtherTypesError(Exception):
    """A jitted function that is compiled already was called with other types, or JAX is configured otherwise."""


def _trace_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `jax.jit` that can be traced once, so that the jitted function is one program.

    Then the function itself is forgotten, with all that it refers to but for constants of the program.
    """
    left = [function]

    def step(*arguments: Any) -> Any:
        if not left:
            raise OtherTypesError
        return left.pop()(*arguments)

    step.__name__ = function.__name__
    return step


class SharedJit:
    """Does what `jax.jit` does, with programs that are shared with others in this process that are equal.

    Args:
        function: The function. Its fourth argument are the inputs, whose types may change from call to call.
        compilations: The log of its compilations.
        **options: Options of `jax.jit`.

    Example:
        Two sessions train `w - 0.1 * g`. The second one traces its step, finds the text among those that were compiled,
        and calls the jitted function of the first one. A third one with `w - rate * g` and `rate = 0.2` has another
        text, and compiles.
    """

    def __init__(self, function: Callable[..., Any], compilations: CompilationLog, **options: Any) -> None:
        self._function, self._compilations, self._options = function, compilations, options
        self._latest: Callable[..., Any] = _raise_other_types
        # By the types of all arguments, and by those of the inputs; the latter are read only if there are several.
        self._all: dict[Hashable, Any] = {}
        self._by_inputs: dict[Hashable, Any] = {}

    def __call__(self, *arguments: Any) -> Any:  # noqa: D102
        jitted = self._latest
        if len(self._by_inputs) > 1:
            jitted = self._by_inputs.get(_types(arguments[_INPUTS_INDEX]), jitted)
        try:
            return jitted(*arguments)
        except OtherTypesError:
            pass  # The error of a later call has no such context.
        for _ in range(2):
            jitted = self._find(arguments, jitted)
            try:
                return jitted(*arguments)
            except OtherTypesError:
                pass
        self._all, self._by_inputs, self._latest = {}, {}, self._jit()
        return self._latest(*arguments)

    @property
    def direct(self) -> Callable[..., Any]:
        """The latest jitted function, which raises `OtherTypesError`; itself, if inputs come in several types."""
        return self._latest if len(self._by_inputs) == 1 else self

    def lower(self, *arguments: Any) -> Any:
        """Lowers the program for these arguments; see `jax.stages.Lowered`."""
        return self._jit().lower(*arguments)

    def _jit(self) -> Any:
        return jax.jit(self._function, **self._options)

    def _find(self, arguments: tuple[Any, ...], refusing: Any) -> Any:
        """Returns the jitted function for these arguments: a known one, one of another program, or a new one."""
        if any(getattr(jax.config, name) for name in _UNSHARED_SETTINGS) or any(
            isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)
        ):
            return self._jit()
        types = _types(arguments), _shardings(arguments)
        found = self._all.get(types)
        if found is None:
            found = self._find_shared(arguments, types, refusing)
        elif found is refusing:  # JAX is configured otherwise: as `jit` keeps a program for each configuration.
            found = self._jit()
        self._all[types] = found
        self._by_inputs[_types(arguments[_INPUTS_INDEX])] = self._latest = found
        return found

    def _find_shared(self, arguments: tuple[Any, ...], types: tuple[Any, Any], refusing: Any) -> Any:
        own = jax.jit(_trace_once(self._function), **self._options)
        with self._compilations.defer_logging():
            traced = own.trace(*arguments)
            lowered = traced.lower()
        key = _cache_key(traced, lowered, *types, self._options)
        with _lock:
            found = _cache.get(key)
            if found is None or found is refusing:
                found = own
            if key is not None:
                _cache[key] = found
                _cache.move_to_end(key)
                if len(_cache) > _MAX_CACHED:
                    _cache.popitem(last=False)
        self._compilations.log_compilation(is_needed=found is own)
        return found


def clear_cache() -> None:
    """Forgets the programs that are shared; sessions that use one go on with it."""
    with _lock:
        _cache.clear()


def _cache_key(
    traced: Any, lowered: Any, types: Hashable, places: tuple[Any, ...], options: dict[str, Any]
) -> Hashable | None:
    """Returns what makes a program equal to another one; None if that cannot be said."""
    jaxpr = traced.jaxpr
    # Effects: of a Ref that the function closes over, of a print.
    if jaxpr.effects or getattr(jax.config, _CONSTANTS_APART):
        return None
    if sum(getattr(constant, "nbytes", 0) for constant in jaxpr.consts) > _MOST_CONSTANT_BYTES:
        return None
    text = lowered.as_text()
    # The text does not say on which devices a mesh of the function's own is.
    is_anywhere = any(mark in text for mark in _MESHES) and not any(places)
    if is_anywhere or any(reference in text for reference in _REFERENCES):
        return None
    of_compiler = tuple(getattr(jax.config, name, None) for name in _COMPILER_SETTINGS)
    given, form = jax.tree.flatten(options, is_leaf=lambda option: option is None)
    digest = hashlib.sha256(text.encode()).digest()
    # The text of `f(a, b) = 2 * a` is that of `f(a, b) = 2 * b`: `jit` leaves out what a program does not use.
    if (kept := kept_argument_indices(lowered)) is None:
        return None
    key = digest, kept, types, places, of_compiler, lowered.out_tree, tuple(jaxpr.out_avals), tuple(given), form
    try:
        hash(key)
    except TypeError:  # Static parts of the results, in which programs could differ.
        return None
    return key


def _types(inputs: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple(map(jax.typeof, leaves))


def _shardings(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves = jax.tree.leaves(arguments)
    return tuple(leaf.sharding if getattr(leaf, "committed", False) else None for leaf in leaves)


def _raise_other_types(*arguments: Any) -> Any:
    raise OtherTypesError
