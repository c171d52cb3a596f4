"""Private parts of JAX, and parts that differ between the versions that hookline supports; no other module uses them.

`tests/test_jax_internals.py` fails with a clear message if a version of JAX has renamed any of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import jax
import jaxlib
from jax._src import distributed, xla_bridge
from jax.extend import core

from hookline import log

_logger = log.get_logger(__name__)

# A jaxpr with its constants. Since JAX 0.12 every jaxpr has them, and this is an alias of `Jaxpr`.
ClosedJaxpr: Any = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
_MAKE_GLOO = "make_gloo_tcp_collectives"
_SOURCES = os.path.dirname(xla_bridge.__file__)
# Modules of JAX, and how the names of those functions begin in which a program is traced, lowered and compiled.
_COMPILING = {
    os.path.join(_SOURCES, "interpreters", "partial_eval.py"): "trace_to_",
    os.path.join(_SOURCES, "interpreters", "mlir.py"): "lower_jaxpr_to_module",
    os.path.join(_SOURCES, "compiler.py"): "compile_or_get_cached",
}
SOURCES = (os.path.dirname(jax.__file__), os.path.dirname(jaxlib.__file__))
"""The directories of the code of JAX."""
_CALLBACK = os.path.join(_SOURCES, "callback.py")


def distributed_state() -> Any:
    """Returns the state that `jax.distributed.initialize` sets: the client, the index of this process, the address."""
    return distributed.global_state


def is_starting_backend() -> bool:
    """Returns whether this process is starting a backend now; JAX then waits for all other processes."""
    lock = getattr(xla_bridge, "_backend_lock", None)
    return lock is not None and lock.locked()


def has_started_backend() -> bool:
    """Returns whether this process has started a backend: from then on it cannot join other processes."""
    return xla_bridge.backends_are_initialized()


def bind_gloo_to(host: str) -> None:
    """Makes Gloo, which runs collectives on CPUs, listen on this host, not on the address of the machine's name.

    Call it before this process starts a backend. If this version of JAX does not allow it, a warning is logged.
    """
    library = getattr(xla_bridge, "_jax", None)
    made = getattr(library, _MAKE_GLOO, None)
    if made is None:
        _warn_of_gloo()
    elif not hasattr(made, "__wrapped__"):  # Not wrapped already.

        @functools.wraps(made)
        def make(*args: Any, **kwargs: Any) -> Any:
            try:
                return made(*args, **{"hostname": host, **kwargs})
            except TypeError:
                _warn_of_gloo()
                return made(*args, **kwargs)

        setattr(library, _MAKE_GLOO, make)


def _warn_of_gloo() -> None:
    _logger.warning("Gloo listens on the address of this machine's name: this version of JAX allows no other.")


def kept_argument_indices(lowered: Any) -> frozenset[int] | None:
    """Returns the indices of the arguments that a lowered program keeps; None if this version of JAX hides them.

    `jax.jit` drops arguments that a program does not use, and the text of the program numbers only the others.
    """
    arguments = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    kept = arguments.get("kept_var_idx")
    return None if kept is None else frozenset(kept)


def is_pmapped(function: Any) -> bool:
    """Returns whether `jax.pmap` made a function, or the function in a `functools.partial`."""
    function = getattr(function, "func", function)
    return getattr(getattr(function, "lower", None), "__module__", None) == "jax._src.pmap"


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values of a `scan`, from the parameters of its equation."""
    if jax.__version_info__ < (0, 11):
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def is_compiling(frame: FrameType) -> bool:
    """Returns whether JAX traces or compiles a program in the thread with this innermost frame."""
    return any(code.co_name.startswith(_COMPILING.get(code.co_filename, "\n")) for code in _codes(frame))


def is_in_callback(frame: FrameType) -> bool:
    """Returns whether the thread with this innermost frame executes a host callback of a program."""
    return any(code.co_filename == _CALLBACK for code in _codes(frame))
