"""Shares compiled programs in a process: equal programs of any sessions and graphs are compiled once.

Two programs are equal if XLA gets the same text and the same options, for arguments of the same types on the same
devices at the same indices. Each program is traced for itself, so if a closure, a global or an object has changed, its
text differs.
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
# Texts with these refer to Python objects of the process by identity, not by content.
_REFERENCES = ("callback", "CustomSPMDPartitioning", "stablehlo.send", "stablehlo.recv")
_MESHES = ("sdy.mesh", "mhlo.sharding")
# Settings of JAX. With these it calls a compiled function again in Python; with the next one, texts lack constants.
_UNSHARED_SETTINGS = ("jax_debug_nans", "jax_debug_infs", "jax_disable_jit")
_CONSTANTS_APART = "jax_use_simplified_jaxpr_constants"
# Settings that XLA gets in addition to the text.
_COMPILER_SETTINGS = ("jax_optimization_level", "jax_memory_fitting_level")
# Constants that a program closes over are kept with it, and printed in its text.
_MOST_CONSTANT_BYTES = 2**20

_cache: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
_lock = threading.Lock()


class OtherTypesError(Exception):
    """A jitted function that is compiled already was called with other types, or JAX is configured otherwise."""


def _trace_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `jax.jit` that can be traced once, so that the jitted function is one program.

    After the trace, the function itself is released, with all that it refers to except constants of the program.
    """
    left = [function]

    def step(*arguments: Any) -> Any:
        if not left:
            raise OtherTypesError
        return left.pop()(*arguments)

    step.__name__ = function.__name__
    return step


class SharedJit:
    """Does the same as `jax.jit`, but shares compiled programs with equal ones in this process.

    Args:
        function: The function. Its fourth argument holds the inputs, whose types may change from call to call.
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
        """The latest jitted function, which raises `OtherTypesError`; this object if inputs come in several types."""
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
        elif found is refusing:  # The configuration of JAX has changed; `jit` keeps a program for each.
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
    """Drops the shared programs; sessions keep those that they use."""
    with _lock:
        _cache.clear()


def _cache_key(
    traced: Any, lowered: Any, types: Hashable, shardings: tuple[Any, ...], options: dict[str, Any]
) -> Hashable | None:
    """Returns a key that only equal programs share; None if the text does not decide whether programs are equal."""
    jaxpr = traced.jaxpr
    # Effects: of a Ref that the function closes over, of a print.
    if jaxpr.effects or getattr(jax.config, _CONSTANTS_APART):
        return None
    if sum(getattr(constant, "nbytes", 0) for constant in jaxpr.consts) > _MOST_CONSTANT_BYTES:
        return None
    text = lowered.as_text()
    # The text does not contain the devices of a mesh inside the function.
    is_anywhere = any(mark in text for mark in _MESHES) and not any(shardings)
    if is_anywhere or any(reference in text for reference in _REFERENCES):
        return None
    of_compiler = tuple(getattr(jax.config, name, None) for name in _COMPILER_SETTINGS)
    given, form = jax.tree.flatten(options, is_leaf=lambda option: option is None)
    digest = hashlib.sha256(text.encode()).digest()
    # The text of `f(a, b) = 2 * a` is that of `f(a, b) = 2 * b`: `jit` leaves out what a program does not use.
    if (kept := kept_argument_indices(lowered)) is None:
        return None
    key = digest, kept, types, shardings, of_compiler, lowered.out_tree, tuple(jaxpr.out_avals), tuple(given), form
    try:
        hash(key)
    except TypeError:  # The results have static parts without a hash, in which programs could differ.
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
